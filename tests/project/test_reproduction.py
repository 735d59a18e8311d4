"""The page of reproductions is what its records say."""

import importlib.util
import json

import pytest

from tests import ROOT

DOCS = ROOT / "docs"
spec = importlib.util.spec_from_file_location("reproduction", DOCS / "reproduction.py")
reproduction = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reproduction)

RECORD = {
    "title": "2. Second",
    "command": "python examples/second.py",
    "seeds": [1, 2],
    "wall_seconds": 3.2,
    "data": "simulated",
    "rows": [{"quantity": "ESS", "ours": 10, "paper": "", "note": ""}],
    "pictures": ["docs/images/quickstart.png"],
    "remarks": ["A remark."],
}


def test_experiments_are_in_the_papers_order():
    records = [RECORD | {"title": title} for title in ("Beyond", "10. Tenth", "2. Second")]
    text = reproduction.page(records, DOCS / "images")
    order = [text.index(heading) for heading in ("## 2. Second", "## 10. Tenth", "## Beyond the paper", "### Beyond")]
    assert order == sorted(order)
    assert "| quantity | ours |\n" in text  # columns without entries are left out
    assert "Seeds: 1, 2. Wall time: 3 s." in text and "(images/quickstart.png)" in text


def test_remarks_are_those_of_the_script():
    record = RECORD | {"command": "python examples/bayesian_pca.py", "remarks": ["Out of date."]}
    text = reproduction.page([record], DOCS / "images")
    assert "Out of date." not in text and reproduction.remarks_of(record)[0] in text
    assert reproduction.remarks_of(RECORD) == ["A remark."]  # there is no such script


def test_bad_records_are_refused(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({key: RECORD[key] for key in RECORD if key != "seeds"}))
    with pytest.raises(ValueError, match=r"a\.json lacks seeds"):
        reproduction.read_record(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps(RECORD | {"rows": [{"quantity": "ESS"}]}))
    with pytest.raises(ValueError, match=r"b\.json has a row without note, ours, paper"):
        reproduction.read_record(tmp_path / "b.json")
    with pytest.raises(FileNotFoundError, match=r"missing\.png"):
        reproduction.page([RECORD | {"pictures": ["images/missing.png"]}], DOCS / "images")


def test_page_is_up_to_date():
    records = [reproduction.read_record(path) for path in sorted((DOCS / "results").glob("*.json"))]
    assert (DOCS / "reproduction.md").read_text() == reproduction.page(records, DOCS / "images")
