"""Trains tokenizer.json files like those of published encoders with the library `tokenizers`."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f'<0x{i:02X}>' for i in range(256)]
MODERN = {'unk': '[UNK]', 'cls': '[CLS]', 'sep': '[SEP]', 'pad': '[PAD]', 'mask': '[MASK]'}
GEMMA = {'unk': '<unk>', 'bos': '<bos>', 'eos': '<eos>', 'pad': '<pad>', 'mask': '<mask>'}
XLM = {'unk': '<unk>', 'cls': '<s>', 'sep': '</s>', 'pad': '<pad>', 'mask': '<mask>'}


def _template(tokenizer: Tokenizer, cls: str, sep: str, between: str) -> processors.TemplateProcessing:
    special = [(name, tokenizer.token_to_id(name)) for name in (cls, sep)]
    return processors.TemplateProcessing(
        single=f'{cls} $A {sep}', pair=f'{cls} $A {between} $B:1 {sep}:1', special_tokens=special
    )


def modern(lines: Sequence[str], size: int) -> Tokenizer:
    """Trains a tokenizer like ModernBERT's: byte-level BPE with OLMo's added tokens, then BERT's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=['|||IP_ADDRESS|||', '<|padding|>'], initial_alphabet=ALPHABET,
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(lines, trainer)
    plain = [*(' ' * n for n in range(24, 1, -1)), '|||EMAIL_ADDRESS|||', '|||PHONE_NUMBER|||']
    tokenizer.add_tokens([AddedToken(text, normalized=True) for text in plain])
    mask = AddedToken('[MASK]', lstrip=True)
    tokenizer.add_special_tokens(['<|endoftext|>', '[UNK]', '[CLS]', '[SEP]', '[PAD]', mask, '[unused0]', '[unused1]'])
    tokenizer.post_processor = _template(tokenizer, '[CLS]', '[SEP]', '[SEP]')
    return tokenizer


def gemma(lines: Sequence[str], size: int) -> Tokenizer:
    """Trains a tokenizer like Gemma's and mmBERT's: BPE with byte fallback on text whose spaces are replaced."""
    special = ['<pad>', '<eos>', '<bos>', '<unk>', '<mask>']
    runs = ['[@BOS@]', *('\n' * n for n in range(1, 6)), *('▁' * n for n in range(2, 8))]
    trained = Tokenizer(models.BPE(unk_token='<unk>'))
    trained.normalizer = normalizers.Replace(' ', '▁')
    trained.pre_tokenizer = pre_tokenizers.Split(Regex('▁+'), 'merged_with_next')
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special, *runs, *BYTES], show_progress=False, limit_alphabet=200
    )
    trained.train_from_iterator(lines, trainer)
    learned = json.loads(trained.to_str())['model']
    merges = [tuple(pair) for pair in learned['merges']]
    tokenizer = Tokenizer(models.BPE(learned['vocab'], merges, unk_token='<unk>', byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = trained.normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(' ', 'merged_with_previous')
    tokenizer.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([*special[:-1], AddedToken('<mask>', lstrip=True)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in runs])
    tokenizer.post_processor = _template(tokenizer, '<bos>', '<eos>', '<eos>')
    return tokenizer


def llama(lines: Sequence[str], size: int) -> Tokenizer:
    """Trains a tokenizer like LLaMA's: Gemma's with a space before the text."""
    tokenizer = gemma(lines, size)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
    tokenizer.pre_tokenizer = None
    return tokenizer


def unigram(lines: Sequence[str], size: int) -> Tokenizer:
    """Trains a tokenizer like XLM-RoBERTa's: a unigram model that marks words and has two separators in a pair."""
    tokenizer = Tokenizer(models.Unigram())
    spaces = normalizers.Replace(Regex(' {2,}'), ' ')
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='always')
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=['<s>', '<pad>', '</s>', '<unk>', '<mask>'], unk_token='<unk>',
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens([AddedToken('<mask>', lstrip=True)])
    tokenizer.post_processor = _template(tokenizer, '<s>', '</s>', '</s> </s>')
    return tokenizer


def bare(lines: Sequence[str], size: int) -> Tokenizer:
    """Trains byte-level BPE without an unknown token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = ['[CLS]', '[SEP]', '[PAD]', '[MASK]']
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=ALPHABET, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = _template(tokenizer, '[CLS]', '[SEP]', '[SEP]')
    return tokenizer


def unmarked(lines: Sequence[str], size: int, **options: str) -> Tokenizer:
    """Trains BPE on words, like DNABERT-2's; `options` may add a word mark: GPT's </w> or WordPiece's ##."""
    tokenizer = Tokenizer(models.BPE(unk_token='[UNK]', **options))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ['[UNK]', '[CLS]', '[SEP]', '[PAD]', '[MASK]']
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, **options)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = _template(tokenizer, '[CLS]', '[SEP]', '[SEP]')
    return tokenizer


def suffixed(lines: Sequence[str], size: int) -> Tokenizer:
    """Trains a tokenizer like GPT's, which marks the end of a word."""
    return unmarked(lines, size, end_of_word_suffix='</w>')


def prefixed(lines: Sequence[str], size: int) -> Tokenizer:
    """Trains BPE whose pieces inside a word begin with WordPiece's ##."""
    return unmarked(lines, size, continuing_subword_prefix='##')


NO_UNK = {key: name for key, name in MODERN.items() if key != 'unk'}
KINDS = {'modern': (modern, MODERN), 'gemma': (gemma, GEMMA), 'llama': (llama, GEMMA), 'unigram': (unigram, XLM)}
KINDS |= {'bare': (bare, NO_UNK), 'unmarked': (unmarked, MODERN), 'suffixed': (suffixed, MODERN)}
KINDS |= {'prefixed': (prefixed, MODERN)}


def write_modernbert(kind: str, lines: Sequence[str], directory: pathlib.Path, size: int = 600) -> Any:
    """Writes a small ModernBertForMaskedLM and a tokenizer of a kind in KINDS; returns the model."""
    import torch
    import transformers

    write_tokenizer(kind, lines, directory, size)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    names = KINDS[kind][1]
    cls, sep = (
        tokenizer.convert_tokens_to_ids(names.get(a, names.get(b))) for a, b in (('cls', 'bos'), ('sep', 'eos'))
    )
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer) + 7, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=40,
        local_attention=8, max_position_embeddings=64, initializer_range=0.3, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=cls, eos_token_id=sep, cls_token_id=cls, sep_token_id=sep, attn_implementation='eager',
        classifier_pooling='mean',
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.ModernBertForMaskedLM(config).float().eval()
    model.save_pretrained(directory)
    return model


def write_tokenizer(kind: str, lines: Sequence[str], directory: pathlib.Path, size: int = 2000) -> dict[str, Any]:
    """Trains a tokenizer of a kind in KINDS and writes its files; returns the contents of tokenizer_config.json."""
    train, names = KINDS[kind]
    train(lines, size).save(str(directory / 'tokenizer.json'))
    config = {f'{key}_token': name for key, name in names.items()}
    config |= {'tokenizer_class': 'PreTrainedTokenizerFast', 'model_input_names': ['input_ids', 'attention_mask']}
    (directory / 'tokenizer_config.json').write_text(json.dumps(config))
    return config
