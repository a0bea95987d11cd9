"""Strings on which tokenizers are likely to disagree."""

import random

HARD = [
    '',
    ' ',
    '\t\n\r ',
    'plain words',
    '  lead  trail  ',
    'a' * 99,
    'b' * 100,
    'c' * 101,
    'd' * 5000,
    'word ' * 500,
    'e\u0301 a\u0308\u0301\u0323 o\u0302\u0301 \u0301start',
    'Z\u0338\u0321\u0328a\u0322l\u0335go',
    'Việt Nam đẹp lắm',
    '你好，世界。我来了！',
    'こんにちは、世界。カタカナ',
    '한국어와 조선말',
    '\u1112\u1161\u11ab\u1100\u116e\u11a8',
    'が\u3099か\u3099',
    'ｶﾞｷﾞ ｆｕｌｌ',
    '\U00020000\U0002a6df',
    '㐀㐁',
    '👩\u200d👩\u200d👧\u200d👦 👍🏽 🇩🇪 😀😀',
    'שלום עולם',
    'مرحبا بالعالم',
    '\u202eabc\u202c',
    'a\x00b\x01c\x7fd',
    'a\x0bb\x0cc\x85d\x1ce',
    'zero\u200bwidth\u200d\u200c\ufeff',
    'soft\u00adhyphen',
    '\ufffd \ufffe',
    'a\xa0b\u3000c\u2003d\u2028e\u2029f\u1680g\u180eh',
    'İstanbul ẞ ß ŉ ǰ ﬁ ½ ™ Ⅳ ㎏',
    'ΑΣ Σ ς ΌΣΟΣ',
    'हिन्दी में',
    'ภาษาไทย น้ำ',
    'தமிழ்',
    '((( "unpaired [ { «',
    "don't can't I'm",
    'U.S.A. 3.14 1,000 $5 50% #tag @me',
    'http://a.b.c/d?e=f&g#h',
    '##ing ##',
    '\ue000\U000f0000\U0010ffff\U000e0001',
    '▁a ▁b▁▁c',
    'a ▁ b',
    '▁',
    'ababababa aaaaaaaa -------- ........',
]

SPECIAL = [
    '[MASK]',
    '[SEP]',
    '[CLS]',
    '[PAD]',
    '[UNK]',
    '[unused5]',
    'a [MASK] b',
    'x[SEP]y',
    '[MASK][MASK]',
    '[mask]',
    '[ MASK ]',
    '[MASK',
    '[[SEP]]',
    'é[CLS]\u0301',
]


def random_texts(count: int, seed: int) -> list[str]:
    """Returns strings of up to 12 parts; each part is the start of a string in HARD or a random character."""
    draw = random.Random(seed)
    parts = [part[:12] for part in HARD if part] + [' '] * 20

    def part() -> str:
        if draw.random() < 0.7:
            return draw.choice(parts)
        return chr(
            draw.choice(
                [draw.randrange(0x20, 0x3000), draw.randrange(0x3000, 0xD800), draw.randrange(0xE000, 0x110000)]
            )
        )

    return [''.join(part() for _ in range(draw.randrange(1, 13))) for _ in range(count)]
