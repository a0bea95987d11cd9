"""A rule-based sentence splitter. A regular expression finds possible boundaries, and fast checks select among them.

The splitter never changes, drops or reorders characters other than white space. The rules are for English and languages
with the same punctuation. They also cover the sentence-final punctuation of Chinese, Japanese, Hindi, Arabic and Urdu.
In case of doubt, the splitter does not split, because half a sentence is worse for pre-training than a long sentence.
"""

import re

# Increase this version with every change that reads or splits a text differently, or encodes other spaces between its
# sentences. The manifest of a built corpus records it, and an unfinished build of another version starts again.
RULES_VERSION = 5

_LOOK_BACK = 32  # the maximum number of characters that `_ends` inspects before a stop

_CLOSERS = '"\'”’»›)\\]}'
_CJK_CLOSERS = '"\'”’」』】〕）》〉］'
_STOPS, _CJK_STOPS = '.!?…‼⁇⁈⁉؟۔।॥', '。！？｡'
# A run of stops, then closing quotes, brackets and footnote marks, then white space. Or a run of CJK stops, then
# closing quotes and brackets; white space is optional. The expression begins with a single set of characters, because
# `re` finds a set ten times faster than alternatives. The look-behinds, with which a run matches only at its first
# stop, and the possessive quantifiers keep the time linear, even for a million dots.
_CANDIDATE = re.compile(
    rf'([{_STOPS}{_CJK_STOPS}])(?:'
    rf'(?<=[{_STOPS}])(?<![{_STOPS}][{_STOPS}])([{_STOPS}]*+)(?:[{_CLOSERS}]|\[[^\]\s]{{1,12}}\])*+\s++'
    rf'|(?<=[{_CJK_STOPS}])(?<![{_CJK_STOPS}][{_CJK_STOPS}])[{_CJK_STOPS}]*+([{_CJK_CLOSERS}]*+)\s*+)'
)
# The first word after a boundary. Opening quotes, brackets, dashes and bullets may precede the word.
_NEXT_WORD = re.compile(r'[\s"\'“‘„«‹(\[{¿¡*•–—-]*([^\W_]*)(\.?)')
_OPENERS = '"\'“‘„«‹([{—–-'
# A number after an abbreviation such as `fig.`: 3, S3, IV.
_NUMBER = re.compile(r'[A-Z]{0,2}\d|[IVXLCDM]+$')
# The beginning of a decimal number with a wrong space, as in `P < 0. 05`.
_BROKEN_DECIMAL = re.compile(r'[<>=≤≥±]\s?-?\d+$')
# Short parts separated by stops, such as U.S, a.m, Ph.D, J.-P, without the last stop, which is the candidate.
_DOTTED = re.compile(r'(?:[^\W\d_]{1,4}\.-?)+[^\W\d_]{1,4}')
# A German abbreviation with a space, such as d. h, without the last stop.
_SPACED = re.compile(r'\b[^\W\d_]\.\s[^\W\d_]$')
# The second part of such an abbreviation: z. B., i. Allg., n. Chr., z. Zt.
_SECOND_PART = re.compile(r'[^\W\d_]|Allg|Br|Chr|Hd|Rh|Zt')
# Such an abbreviation that has another meaning without its first part: i. Br., z. Hd., a. Rh.
_SPACED_PLACE = re.compile(r'\b[^\W\d_]\.\s(?:Br|Hd|Rh)$')
# The word before one of _PARTS: s. Abb. 3, u. Kap. 4.
_BEFORE_PART = re.compile(r'\b[su]$')
# The number of a list item at the start of a sentence, such as 1. or 2.3. or (a. or IV.
_ENUMERATOR = re.compile(r'[(\[]?(?:\d+(?:\.\d+)*|[A-Za-z]|[IVXLCDM]+)')


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Titles: a name always follows.
_TITLES = _words(
    'Mr Mrs Ms Mx Messrs Mmes Dr Drs Prof Profs Gen Col Lt Sgt Capt Cmdr Cdr Maj Adm Cpl Pvt Brig Rev Revd Hon Gov Sen '
    'Sens Rep Reps Pres Msgr Supt Insp Det Mme Mlle Mt Mts Ft Fr Amb Atty Sec Secy Treas Herr Hr Frl Sig Sta Sto'
)
# Abbreviations after which the sentence always continues. Case is ignored.
_NEVER = _words('e.g i.e cf vs viz approx incl excl esp eg ie v resp feat ft chr allg zt')
# Words that are abbreviations only before a number (so not in `He said no. She left.`), unless another list also has
# them. Case is ignored.
_BEFORE_NUMBERS = _words(
    'no nos nr vol vols p pp fig figs ch chap chaps sec secs sect art arts eq eqs eqn eqns ver vers op opp pt pts col '
    'cols fol ex exs ca c b d fl r par para pars bk tab tabs tbl app appx suppl ref refs ed edn ser n nn l ll lib thm '
    'lem cor prop def alg max avg tel ext apt rm pat rs abb anm bd kap env jan feb mar apr jun jul aug sep sept oct '
    'nov dec'
)
# Parts of a book in German.
_PARTS = _words('Abb Anm Art Bd Kap Nr Tab')
# Abbreviations that end a sentence only if a word in _STARTERS follows.
_EITHER = _words(
    'Inc Ltd Co Cos Corp Bros Jr Sr Esq St Ste Ave Blvd Rd Sq Hwy Pkwy Dept Univ Assn Assoc Bldg Est Ed Eds ed eds al '
    'etc trans rev repr Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun '
    'Ala Ariz Ark Calif Colo Conn Del Fla Ga Ill Ind Kan Ky La Mass Md Mich Minn Miss Mo Mont Neb Nev Okla Ore Pa Penn '
    'Tenn Tex Va Vt Wash Wis Wyo Ont Que Vol Vols Fig Figs Ch Chap No Nos Op Pt Eq Sect Art Adj Adv Phil Sci Nat Proc '
    'J Am Brit Med Lett Rev Phys Chem Biol Math Soc Acad Trans Wm Geo Chas Thos Jas Jos Robt Benj Saml Edw Alex sp spp '
    'ssp subsp var cv'
)
# Words that often begin a sentence and rarely a name.
_STARTERS = _words(
    'The It He She They We You I This That These Those There Here His Her Their Its Our My Your But And Or So Yet If '
    'When While Where As At After Before In On For From By With However Although Though Since Because Then Thus Also '
    'Another Some Many Most Both Each Several One Two Three Not A An What Who How Why Yes Meanwhile Despite During '
    'Under Among Upon Once Until Unlike According To Of Following Its Other Others All Only Even Such Until Later Today'
)

_ABBREVIATIONS = _TITLES | _NEVER | _BEFORE_NUMBERS | _EITHER | _words('Br Hd Rh')
_LONG = 7  # in letters; every abbreviation is shorter


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into sentences without surrounding white space. An empty paragraph gives an empty list."""
    paragraph = paragraph.strip()
    sentences, start = [], 0
    for match in _CANDIDATE.finditer(paragraph):
        end = match.end()
        if end == len(paragraph):
            break
        stop, more_stops, quotation = match.groups()
        following = paragraph[end]
        if more_stops is None:
            # In `「行こう。」と言った`, the sentence continues after the quotation.
            if quotation and following in 'とっ':
                continue
        elif following.isalpha() and following.islower():
            continue
        else:
            at = match.start()
            ends_plainly = following.isupper() and _ends_plainly(paragraph, start, at)
            if not ends_plainly and not _ends(paragraph, start, at, stop + more_stops, end):
                continue
        sentence = paragraph[start:end].strip()
        if sentence:
            sentences.append(sentence)
        start = end
    last = paragraph[start:].strip()
    if last:
        sentences.append(last)
    return sentences


def _ends_plainly(text: str, start: int, at: int) -> bool:
    """Returns whether an ordinary word precedes the stop at `at`, in the sentence that begins at `start`.

    If a capital letter follows the stop, an ordinary word before the stop means that the sentence ends. This fast check
    decides most stops, and `_ends` decides the others.
    """
    if at - start > _LONG and text[at - _LONG : at].isalpha():
        return True
    if at - start <= _LOOK_BACK:
        return False
    word = text[text.rfind(' ', start, at) + 1 : at]
    return len(word) > 1 and word.isalpha() and word not in _ABBREVIATIONS and word.lower() not in _ABBREVIATIONS


def _ends(text: str, start: int, stop_at: int, stop: str, next_at: int) -> bool:
    """Returns whether the sentence that begins at `start` ends with the stop at `stop_at`.

    `stop` is the run of stops, and `next_at` is the index of the text after the stops and white space.
    """
    match = _NEXT_WORD.match(text, next_at)
    following = match[1]
    if following[:1].islower():
        return False
    if stop != '.':
        return True
    before = text[max(start, stop_at - _LOOK_BACK) : stop_at]
    if not before or before[-1].isspace():
        return True
    word = before.split()[-1].lstrip(_OPENERS)
    if '—' in word:
        word = word.rpartition('—')[2]
    if word in _TITLES or word.lower() in _NEVER or _SPACED_PLACE.search(before):
        return False
    if len(word) > 5 and '.' not in word and not word[-1].isdigit():
        return True
    if stop_at - start <= _LOOK_BACK and _ENUMERATOR.fullmatch(text, start, stop_at):
        return False
    if word.lower() in _BEFORE_NUMBERS and _NUMBER.match(following):
        return False
    if _BROKEN_DECIMAL.search(before) and following[:1].isdigit():
        return False
    # A small letter can be a part of a German abbreviation: z. B., d. h., n. Chr., s. Abb. 3
    in_reference = following in _PARTS and _BEFORE_PART.search(before)
    in_abbreviation = (match[2] and (in_reference or _SECOND_PART.fullmatch(following))) or _SPACED.search(before)
    initial = len(word) == 1 and word.isalpha() and (word.isupper() or in_abbreviation)
    if initial or word in _EITHER or _DOTTED.fullmatch(word):
        # In `J. A. Smith`, `A` looks like a sentence starter, but it is an initial.
        return following in _STARTERS and not match[2]
    return True
