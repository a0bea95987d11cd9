"""A rule-based sentence splitter: one regular expression finds the candidates, cheap checks decide each.

It never changes, drops or reorders a character that is not white space, so its mistakes cost a boundary, never text.
The rules are for English and the languages that share its punctuation; the full stops of Chinese, Japanese, Hindi,
Arabic and Urdu are known too. When in doubt it does not split: a sentence too long is a smaller harm to a sentence pair
than half of one.
"""

import re

# Raised with every change that cuts any text otherwise. New stores record it; a finished one stays as it was cut.
RULES_VERSION = 3

_LOOKED_AT = 32  # Characters before a stop: with a bound, time stays linear.

_CLOSERS = '"\'”’»›)\\]}'
_CJK_CLOSERS = '"\'”’」』】〕）》〉］'
_STOPS, _CJK_STOPS = '.!?…‼⁇⁈⁉؟۔।॥', '。！？｡'
# A run of stops, then closing quotes, brackets and footnote marks, then white space. It begins with one set of
# characters, for which `re` looks ten times faster than for what has choices at its beginning. The look-behinds, by
# which a run is entered at its first stop, and the possessive quantifiers keep it linear on a million dots.
_CANDIDATE = re.compile(
    rf'([{_STOPS}{_CJK_STOPS}])(?:'
    rf'(?<=[{_STOPS}])(?<![.!?…][{_STOPS}])([{_STOPS}]*+)(?:[{_CLOSERS}]|\[[^\]\s]{{1,12}}\])*+\s++'
    rf'|(?<=[{_CJK_STOPS}])(?<![{_CJK_STOPS}][{_CJK_STOPS}])[{_CJK_STOPS}]*+([{_CJK_CLOSERS}]*+)\s*+)'
)
# The first word after a boundary, behind opening quotes, brackets, dashes and bullets.
_NEXT_WORD = re.compile(r'[\s"\'“‘„«‹(\[{¿¡*•–—-]*([^\W_]*)(\.?)')
_OPENERS = '"\'“‘„«‹([{—–-'
# What abbreviations such as `fig.` stand before: 3, S3, IV.
_NUMBER = re.compile(r'[A-Z]{0,2}\d|[IVXLCDM]+$')
# A decimal that fell apart, as in `P < 0. 05`.
_COMPARED = re.compile(r'[<>=≤≥±]\s?-?\d+$')
# U.S, a.m, Ph.D, J.-P: short parts with stops between them (the last stop is the candidate itself).
_DOTTED = re.compile(r'(?:[^\W\d_]{1,4}\.-?)+[^\W\d_]{1,4}')
# An enumeration, where a sentence begins: 1. or 2.3. or (a. or IV.
_ENUMERATOR = re.compile(r'[(\[]?(?:\d+(?:\.\d+)*|[A-Za-z]|[IVXLCDM]+)')


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name always follows.
_TITLES = _words(
    'Mr Mrs Ms Mx Messrs Mmes Dr Drs Prof Profs Gen Col Lt Sgt Capt Cmdr Cdr Maj Adm Cpl Pvt Brig Rev Revd Hon Gov Sen '
    'Sens Rep Reps Pres Msgr Supt Insp Det Mme Mlle Mt Mts Ft Fr Amb Atty Sec Secy Treas Herr Hr Frl Sig Sta Sto'
)
# The sentence always goes on (in lower case, whatever case the text has).
_NEVER = _words('e.g i.e cf vs viz approx incl excl esp eg ie v resp feat ft chr')
# A number follows; with anything else after it, it is an ordinary word (`He said no. She left.`).
_BEFORE_NUMBERS = _words(
    'no nos nr vol vols p pp fig figs ch chap chaps sec secs sect art arts eq eqs eqn eqns ver vers op opp pt pts col '
    'cols fol ex exs ca c b d fl r par para pars bk tab tabs tbl app appx suppl ref refs ed edn ser n nn l ll lib thm '
    'lem cor prop def alg max avg tel ext apt rm pat rs abb bd kap env jan feb mar apr jun jul aug sep sept oct nov dec'
)
# It may end a sentence or not: it does when a word follows that begins sentences more often than names.
_EITHER = _words(
    'Inc Ltd Co Cos Corp Bros Jr Sr Esq St Ste Ave Blvd Rd Sq Hwy Pkwy Dept Univ Assn Assoc Bldg Est Ed Eds ed eds al '
    'etc trans rev repr Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun '
    'Ala Ariz Ark Calif Colo Conn Del Fla Ga Ill Ind Kan Ky La Mass Md Mich Minn Miss Mo Mont Neb Nev Okla Ore Pa Penn '
    'Tenn Tex Va Vt Wash Wis Wyo Ont Que Vol Vols Fig Figs Ch Chap No Nos Op Pt Eq Sect Art Adj Adv Phil Sci Nat Proc '
    'J Am Brit Med Lett Rev Phys Chem Biol Math Soc Acad Trans Wm Geo Chas Thos Jas Jos Robt Benj Saml Edw Alex sp spp '
    'ssp subsp var cv'
)
_STARTERS = _words(
    'The It He She They We You I This That These Those There Here His Her Their Its Our My Your But And Or So Yet If '
    'When While Where As At After Before In On For From By With However Although Though Since Because Then Thus Also '
    'Another Some Many Most Both Each Several One Two Three Not A An What Who How Why Yes Meanwhile Despite During '
    'Under Among Upon Once Until Unlike According To Of Following Its Other Others All Only Even Such Until Later Today'
)

_ABBREVIATIONS = _TITLES | _NEVER | _BEFORE_NUMBERS | _EITHER
_LONG = 7  # Letters; more than any of them has.


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into sentences, stripped of the white space around them; an empty paragraph gives none."""
    paragraph = paragraph.strip()
    sentences, start = [], 0
    for match in _CANDIDATE.finditer(paragraph):
        end = match.end()
        if end == len(paragraph):
            break
        stop, more, quotation = match.groups()
        following = paragraph[end]
        if more is None:
            # `「行こう。」と言った`: the sentence that quotes goes on after the quotation.
            if quotation and following in 'とっ':
                continue
        elif following.isalpha() and following.islower():
            continue
        else:
            at = match.start()
            plain = following.isupper() and _plain(paragraph, start, at)
            if not plain and not _ends(paragraph, start, at, stop + more, end):
                continue
        sentence = paragraph[start:end].strip()
        if sentence:
            sentences.append(sentence)
        start = end
    last = paragraph[start:].strip()
    if last:
        sentences.append(last)
    return sentences


def _plain(text: str, start: int, at: int) -> bool:
    """Whether the sentence from `start` ends with a stop at `at` that a capital follows, as can be told most often: an
    ordinary word is before it. What cannot be told so, `_ends` decides."""
    if at - start > _LONG and text[at - _LONG : at].isalpha():
        return True
    if at - start <= _LOOKED_AT:
        return False
    word = text[text.rfind(' ', start, at) + 1 : at]
    return len(word) > 1 and word.isalpha() and word not in _ABBREVIATIONS and word.lower() not in _ABBREVIATIONS


def _ends(text: str, start: int, stop_at: int, stop: str, next_at: int) -> bool:
    """Whether the sentence from `start` ends with the `stop` at `stop_at`, with the next text at `next_at`."""
    match = _NEXT_WORD.match(text, next_at)
    following = match[1]
    if following[:1].islower():
        return False
    if stop != '.':
        return True
    before = text[max(start, stop_at - _LOOKED_AT) : stop_at]
    if not before or before[-1].isspace():
        return True
    word = before.split()[-1].lstrip(_OPENERS)
    if '—' in word:
        word = word.rpartition('—')[2]
    if word in _TITLES or word.lower() in _NEVER:
        return False
    if len(word) > 5 and '.' not in word and not word[-1].isdigit():
        return True
    if stop_at - start <= _LOOKED_AT and _ENUMERATOR.fullmatch(text, start, stop_at):
        return False
    if word.lower() in _BEFORE_NUMBERS and _NUMBER.match(following):
        return False
    if _COMPARED.search(before) and following[:1].isdigit():
        return False
    initial = len(word) == 1 and word.isupper()
    if initial or word in _EITHER or _DOTTED.fullmatch(word):
        # `J. A. Smith`: what looks like a beginning is the next initial.
        return following in _STARTERS and not match[2]
    return True
