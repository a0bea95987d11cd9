"""The paper's feature-based tagger in PyTorch: a two-layer BiLSTM on layers of a frozen BERT (section 5.3).

transformers has no such class. This is the counterpart of bertjax/model/heads.py:BertForTokens with `frozen`.
"""

import torch
import transformers
from torch import nn


class FrozenTagger(nn.Module):
    """A token classifier on the hidden states of a frozen encoder.

    Args:
      source: The directory of the encoder.
      outputs: The number of classes.
      layers: 'last', 'second_to_last', 'embeddings' or 'concat_last_four'.
      units: The number of units in each direction of the LSTM.
      dropout: The dropout rate between the layers of the LSTM and before the projection.
    """

    def __init__(self, source: str, outputs: int, layers: str, units: int, dropout: float):
        super().__init__()
        self.encoder = transformers.BertModel.from_pretrained(source, add_pooling_layer=False).requires_grad_(False)
        indices = {'embeddings': [0], 'second_to_last': [-2], 'last': [-1], 'concat_last_four': [-4, -3, -2, -1]}
        self.layer_indices = indices[layers]
        width = len(self.layer_indices) * self.encoder.config.hidden_size
        self.lstm = nn.LSTM(width, units, 2, batch_first=True, dropout=dropout, bidirectional=True)
        # As in bertjax, the bias of the forget gate is 1, and the other biases are 0.
        for name, parameter in self.lstm.named_parameters():
            if name.startswith('bias'):
                nn.init.zeros_(parameter)
            if name.startswith('bias_ih'):
                nn.init.ones_(parameter[units : 2 * units])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * units, outputs)

    def train(self, mode: bool = True) -> 'FrozenTagger':
        """Sets the mode; the encoder stays in evaluation mode, without dropout."""
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Returns `logits` [B, S, outputs], and `loss` if there are labels.

        Args:
          input_ids, token_type_ids, attention_mask: int64 [B, S].
          labels: int64 [B, S]; the loss ignores -100.
        """
        with torch.no_grad():
            states = self.encoder(input_ids, attention_mask, token_type_ids, output_hidden_states=True).hidden_states
        features = torch.cat([states[i] for i in self.layer_indices], -1)  # [B, S, D or 4D]
        lengths = attention_mask.sum(1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(features, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], True, 0.0, input_ids.shape[1])
        logits = self.head(self.dropout(hidden))
        result = {'logits': logits}
        if labels is not None:
            result = {'loss': nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), **result}
        return result
