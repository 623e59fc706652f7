"""Tables of studies: numbers stand to the right, names and words to the left."""

from __future__ import annotations

from unmask.studies.sheet import Sheet


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    columns = ("", "words", "points", "p", "empty", "mixed")
    rows = (("1", "b", "+1.5 [-0.2, 3.2]", "< 0.001", "", "3"), ("2", "a 3", "**-2**", "", "", "none"))
    sheet = Sheet("Title", columns, rows, "A note.")
    assert sheet.markdown().splitlines() == [
        "## Title",
        "|  | words | points | p | empty | mixed |",
        "| --- | --- | --: | --: | --: | --- |",
        "| 1 | b | +1.5 [-0.2, 3.2] | < 0.001 |  | 3 |",
        "| 2 | a 3 | **-2** |  |  | none |",
        "",
        "A note.",
    ]
    assert [column.justify for column in sheet.rich().columns] == ["left", "left", "right", "right", "right", "left"]
