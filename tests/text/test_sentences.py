"""Tests the boundaries of sentences."""

import time

import pytest
from hard_text import HARD, random_texts

from bertjax.text import sentences
from bertjax.text.sentences import split_sentences

# A bar marks the end of a sentence.
CASES = [
    'Mr. Smith met Dr. J. R. R. Tolkien.| They talked.',
    'Mrs. Dalloway bought them herself.| Prof. E. O. Wilson agreed, St. John did not.',
    'He left the U.S. Senate in 1990.| He now lives in the U.S.| The rest is history.',
    'It opens at 9 a.m. on Mondays and closes at 5 p.m.| We arrived late.',
    'Some fruit, e.g. apples, i.e. Malus, vs. pears (cf. Smith) are good.| Others are not.',
    'See vol. 3, pp. 12–15, fig. 2 and No. 5 of the list.| It cost 3.14 dollars.| That is 1.5 times more.',
    'No. He said no.| She left.'.replace('No. ', 'No.| '),
    'It was plan B.| It failed.| World War I. The army'.replace('I. ', 'I.| '),
    '"Go!" he said.| "Why?" asked John quietly.',
    'He shouted.| "Go away!"| Then he left.',
    'She said, “I know.”| ‘Do you?’ he asked.',
    '(This is a note.)| [So is this.]| The end.',
    'Wait... what?| Well...| Then it began.| Oh… Yes.'.replace('… ', '…| '),
    'It was found by Jones et al. in 1999.[3]| The claim was disputed.[12][13]| Nobody cared.',
    'Go to http://www.example.com/a.b?c=d. Then come back.'.replace('d. ', 'd.| '),
    'The company, Foo Inc. of Boston, bought Bar Ltd. and Baz Co. Ltd. in Jan. 2001.| It paid cash.',
    'Er war z. B. in Köln, d. h. Bonn, im Jahr 9 n. Chr. und u. a. 1990.| Er ging.| It was plan b.| Then it failed.',
    'Siehe S. 3, s. Abb. 3 und s. Kap. 4 in Freiburg i. Br. am Ort.| Ludwigshafen a. Rh. schreibt z. Hd. Herrn Meier.',
    'Dies zeigt s. Anm. 3, s. Bd. 2, s. Nr. 5, s. Art. 6 und vgl. s. Tab. 4.| It was plan b.| Abb. 3 shows it.',
    'The film is available in HD.| Critics liked it.| The film is in HD.| The next is not.| He is Rh.| Mothers are.',
    'Es lag in Ludwigshafen a. Rh. Herr Meier sah Abb. 2 u. Abb. 3 im Anhang, Kap. 2 u. Kap. 3 im Text.| Er ging.',
    'It took 30 s.| Fig. 3 shows it.| The time is 5\u00a0s.| No. 3 is s.| Eq. 3 defines it.| Er las Kap. 3 s. Abb. 4.',
    'Das ist z. Zt. Mode und i. Allg. Geschmackssache.| Er ging.',
    'Solve for x.| 2. Find y.| The answer was b.| Yes.| The point is x.| Fig. 3 shows it.| Let y = x.| Dr. Lee came.',
    'Martin Luther King Jr. Day is a holiday.| So is the day of Sammy Davis Jr.| They were friends.',
    'Roe v. Wade was decided on Jan. 22, 1973.| It was overturned.',
    '1. Introduction',
    '(a. The first point.| [2.3. The second.| (IV. The third.| It ends (b. The list).'.replace('(b. ', '(b.| '),
    ' ' * 40 + '1. Introduction',
    'He has a Ph.D. in physics.| She has an M.D.| Both work.',
    'Gen. Lee and Lt. Col. Grant met Sen. J. F. Kennedy.| Really?!| Yes.',
    'Э. Хемингуэй родился в 1899 году.| Он писал.',
    '我来了。|你呢？|好！|他说：“走吧。”|我们走了。',
    '「行こう。」と言った。|次の日だった。',
    'यह एक वाक्य है।| यह दूसरा है।',
    'هل أنت بخير؟| نعم.',
    'Tokenized text works too .| It has spaces before stops .',
    'In 1990.| 20 people came.',
    'One line\nwrapped in two.| Next.',
    'No stop at all',
    # Abbreviations before numbers.
    'It rose by approx. 10% in a year.| Approx. $5 was lost.| Nobody knew.',
    'It was shown before (ref. 3) and after (refs. 4 and 5).| See Ref. [6] and Suppl. 2 of it.',
    'Jones et al. (2004) and Lee et al. 2005 agree with Figs. S1 and S2, fig. S3 and eqs. (4) to (6).| They differ.',
    'He lost 9 vs. 10, as no. 5 on p. 3 and pp. 4–6 of vol. II says.| She won.',
    'Dr. Lee of Messrs. Lee and Sons met Prof. May, e.g. in Jan. 2001.| "Messrs. May" was their name.',
    'It was less (P < 0. 05) but not much (p=0. 20).| It was 20. 20 are enough.'.replace('20. 20', '20.| 20'),
    'Max. 20 people fit in, i.e. incl. Tom.| The rest wait.',
    'We saw Diuris sp. Perth, Candida spp. and E. coli.| They grew.',
    'He asked the long way round. 20 people answered.'.replace('d. ', 'd.| '),
]


@pytest.mark.parametrize('marked', CASES)
def test_sentences_end_at_the_marks(marked):
    expected = [part.strip() for part in marked.split('|')]
    assert split_sentences(marked.replace('|', '')) == expected


def letters(text: str) -> str:
    return ''.join(text.split())


def test_random_text_loses_no_character():
    stops = [
        '.',
        '!',
        '?',
        '…',
        '。',
        '？',
        '"',
        "'",
        ')',
        '[1]',
        ' ',
        '\n',
        'Mr',
        'U.S',
        'a',
        'A',
        '5',
        '\u200b',
        '\x85',
        '\u2028',
    ]
    texts = [
        ''.join(stops[(seed * 7919 + i * i * 31 + i * seed) % len(stops)] for i in range(40)) for seed in range(3000)
    ]
    for text in [*HARD, *random_texts(3000, seed=5), *texts]:
        sentences = split_sentences(text)
        assert letters(''.join(sentences)) == letters(text)
        assert all(sentence and sentence == sentence.strip() for sentence in sentences)


def test_sentences_of_real_text_have_usual_lengths(corpus_lines):
    lines = [line for line in corpus_lines[::3] if len(line) > 200]
    lengths = []
    for line in lines:
        sentences = split_sentences(line)
        assert letters(''.join(sentences)) == letters(line)
        lengths += [len(sentence.split()) for sentence in sentences]
    # English encyclopedias and novels have 15 to 25 words per sentence; sentences of one or two are errors or speech.
    assert 14 < sum(lengths) / len(lengths) < 26
    assert sum(length <= 2 for length in lengths) < 0.04 * len(lengths)


ODD = ['.', '.)', 'a. ', 'A. ', 'U.S. ', '."', '. "', '" ', '.[', '。', 'x', '.[1]', '!? ']


@pytest.mark.parametrize('text', [part * 200_000 for part in ODD], ids=range(len(ODD)))
def test_time_is_linear_on_unusual_text(text):
    start = time.process_time()
    assert letters(''.join(split_sentences(text + 'x'))) == letters(text + 'x')
    assert time.process_time() - start < 5


def test_splitting_processes_8_mb_per_second(paragraphs):
    text = ' '.join(paragraphs)
    start = time.process_time()
    split_sentences(text)
    # One core reached 60 MB/s; the bound allows for slow and busy machines.
    assert len(text) / (time.process_time() - start) > 8e6


def test_abbreviations_are_shorter_than_words_that_are_not_looked_up():
    assert max(map(len, sentences._ABBREVIATIONS)) < sentences._LONG


@pytest.mark.parametrize(
    'text, count',
    [
        ('He read the works of Messrs. Smith and Jones with a friend.', 1),
        ('At the end of that very long day it took approx. Two hours of their time.', 1),
        ('By the end of that very long day they had seen him. Two hours later they left.', 2),
        ('They came at the end of that very long day to the well. Two hours later they left.', 2),
    ],
)
def test_a_capital_starts_a_sentence_except_after_an_abbreviation(text, count):
    assert len(sentences.split_sentences(text)) == count
