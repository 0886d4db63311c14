"""Encodings of files, guessed from few words: as exports of offices have them."""

from __future__ import annotations

import pytest

from core.files.encodings import decoded

TEXTS = {
    "cp1252": ["name;city\nJosé;Málaga\n", "Größe", "ça va, l’été ? – 5 €", "coração, não", "Grüße aus Österreich"],
    "cp1251": ["Привет, мир! Как дела сегодня?", "имя;город\nИван;Москва\nАнна;Казань\n"],
    "gb18030": ["姓名,城市,说明\n" + "张伟,北京,他在这里工作了很多年\n" * 3],
    "big5": ["姓名,城市\n" + "陳小明,臺北,他在這裡工作了很多年\n" * 3],
    "cp932": ["名前,都市\n" + "田中さん,東京,ここで長い間働いています\n" * 3],
    "cp949": ["이름,도시\n" + "김철수,서울,여기서 오래 일했습니다\n" * 3],
    "utf-8": ["Größe 東京 😀"],
    "utf-16-le": ["name\tcity\nAnna\tBerlin\n"],
    "utf-16": ["name\tcity\n東京\tBerlin\n"],
}


@pytest.mark.parametrize(("encoding", "text"), [(name, text) for name, texts in TEXTS.items() for text in texts])
def test_a_text_of_few_words_is_read(encoding: str, text: str) -> None:
    guess = decoded(text.encode(encoding))
    assert guess is not None
    assert guess.text == text


def test_no_text_is_of_a_mainframe() -> None:
    """Statistics of a few bytes find EBCDIC as likely as anything."""
    guess = decoded(b"\xd6\xe4\xf6\xfc")
    assert guess is not None
    assert not guess.encoding.startswith(("cp037", "cp500", "cp1026", "cp1140", "cp273"))
