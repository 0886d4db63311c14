"""Finds fonts for letters that the usual ones do not have, and makes a small font of just these letters.

Sika brings Noto fonts with Chinese, Japanese and Korean, emoji and symbols; those of the machine come after them.
This file lies in the skills `data-analysis` and `documents`.
"""

from __future__ import annotations

import importlib.util
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from fontTools import subset
from fontTools.pens.cu2quPen import Cu2QuPen
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTCollection, TTFont, newTable
from matplotlib import font_manager

PACKAGES = ("manimgx_fonts", "manimgx_fonts_cjk")
FIX = "install a font that has them (Debian: fonts-noto-cjk, fonts-noto-core; or pip install manimgx-fonts-cjk)"
SHAPED = ((0x0590, 0x08FF), (0x0900, 0x0DFF), (0x0F00, 0x109F), (0x1780, 0x17FF), (0xFB1D, 0xFDFF), (0xFE70, 0xFEFF))
"""Scripts that run from right to left or join their letters, which is not done here."""
VARIABLE = ("CFF ", "CFF2", "fvar", "gvar", "avar", "HVAR", "STAT", "loca", "glyf", "cvar")
MAXIMA = (
    *("maxZones", "maxTwilightPoints", "maxStorage", "maxFunctionDefs", "maxInstructionDefs", "maxStackElements"),
    *("maxSizeOfInstructions", "maxComponentElements", "maxPoints", "maxContours", "maxCompositePoints"),
    *("maxCompositeContours", "maxComponentDepth"),
)


def visible(text: str) -> set[str]:
    """Returns the characters that need a glyph."""
    unseen = ("Cc", "Cf", "Mn", "Me")  # joiners and the selectors of emoji among them
    return {char for char in text if not char.isspace() and unicodedata.category(char) not in unseen}


def printable(text: str) -> str:
    """Returns the text without selectors of emoji and joiners, which fonts have no glyph for."""
    return "".join(char for char in text if char not in "\u200b\u200c\u200d\u2060\ufe0e\ufe0f\ufeff")


def shaped(text: str) -> set[str]:
    """Returns the characters of scripts that cannot be set letter by letter."""
    return {char for char in text if any(low <= ord(char) <= high for low, high in SHAPED)}


def made_for(
    characters: Iterable[str], folder: Path, bold: bool = False
) -> tuple[list[tuple[Path, set[str]]], set[str]]:
    """Writes fonts that have these characters, and returns them with what each has, and the characters of no font."""
    left, fonts = {ord(char) for char in characters}, []
    for number, path in enumerate(_candidates()):
        if not left:
            break
        try:
            font = _open(path)
            if codes := left & set(font.getBestCmap() or ()):
                target = folder / f"letters{number}{'-bold' * bold}.ttf"
                _reduced(font, codes, 700 if bold else 400).save(target)
                fonts.append((target, {chr(code) for code in codes}))
                left -= codes
        except Exception:  # a font of the machine that is damaged, or of a kind that cannot be embedded
            continue
    return fonts, {chr(code) for code in left}


def _candidates() -> Iterator[str]:
    for package in PACKAGES:
        if (spec := importlib.util.find_spec(package)) and spec.submodule_search_locations:
            yield from sorted(str(path) for path in Path(spec.submodule_search_locations[0]).glob("*.tt[fc]"))
    names = [name for name in font_manager.findSystemFonts() if "Color" not in name]
    yield from sorted(names, key=lambda name: ("noto" not in name.lower(), name))


def _open(path: str) -> TTFont:
    return TTCollection(path, lazy=True).fonts[0] if path.lower().endswith(".ttc") else TTFont(path, lazy=True)


def _reduced(font: TTFont, codes: set[int], weight: int) -> TTFont:
    options = subset.Options(layout_features=[], name_IDs=[1, 2, 4, 6], notdef_outline=True, hinting=False)
    options.drop_tables += ["vhea", "vmtx", "VORG", "VVAR", "BASE", "GSUB", "GPOS", "GDEF", "MVAR"]
    options.notdef_glyph = True
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=codes)
    subsetter.subset(font)
    return _drawn(font, weight) if "glyf" not in font or "fvar" in font else font


def _drawn(font: TTFont, weight: int) -> TTFont:
    """Returns the font with fixed outlines of the kind that PDF libraries embed."""
    glyphs, outlines = font.getGlyphSet(location={"wght": weight} if "fvar" in font else None), {}
    for name in font.getGlyphOrder():
        pen = TTGlyphPen(glyphs)
        glyphs[name].draw(pen if "glyf" in font else Cu2QuPen(pen, max_err=1.0, reverse_direction=True))
        outlines[name] = pen.glyph()
    widths = {name: round(glyphs[name].width) for name in outlines}
    order = font.getGlyphOrder()
    for tag in VARIABLE:
        if tag in font:
            del font[tag]
    font["loca"], font["glyf"] = newTable("loca"), newTable("glyf")
    font["glyf"].glyphOrder, font["glyf"].glyphs = order, outlines
    for name, glyph in outlines.items():
        glyph.recalcBounds(font["glyf"])
        font["hmtx"][name] = (widths[name], getattr(glyph, "xMin", 0))
    font["maxp"].tableVersion = 0x00010000
    for field in MAXIMA:
        setattr(font["maxp"], field, int(field == "maxZones"))
    font["OS/2"].usWeightClass = weight
    for entry in font["name"].names:
        if entry.nameID == 6:  # PDF readers tell fonts apart by it
            entry.string = f"{entry.toUnicode()[:50]}-{weight}"
    font["post"].formatType, font["head"].glyphDataFormat = 3.0, 0
    font.sfntVersion = "\000\001\000\000"
    return font
