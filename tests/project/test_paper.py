"""The numbers of paper/paper.md are those of the record that it names, its citations are in its bibliography."""

import json
import re
from statistics import median

import pytest

from tests import ROOT

TEXT = (ROOT / "paper/paper.md").read_text()
RESULTS = json.loads((ROOT / "benchmarks/results.json").read_text())
PROBLEMS = RESULTS["problems"]
COLUMNS = ("StiefelNUTS", "OrthogonalHMC", "GeodesicHMC", "nutpie, QR", "nutpie, polar")
ROWS = [row.strip("| ").split(" | ") for row in TEXT.splitlines() if row.startswith("| ")][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_table_is_that_of_the_record(row):
    problem, *numbers = row
    assert numbers == [f"{1000 * PROBLEMS[problem][name]['ess_per_gradient']:.3g}" for name in COLUMNS]


def test_ratios_and_version_are_those_of_the_record():
    ratios = [rows["StiefelNUTS"]["ratio"] for rows in PROBLEMS.values()]
    said = " ".join(TEXT.split())
    assert f"{min(ratios):.1f} to {max(ratios):.0f} times the speed of the best other one on fifteen problems" in said
    assert f"{median(ratios):.1f} times in the median" in said and len(ratios) == 15
    assert f"measured with version {RESULTS['machine']['versions']['pymc_stiefel']}" in said


def test_every_citation_has_an_entry():
    cited = set(re.findall(r"@([a-z]+\d*)", TEXT.split("---", 2)[2]))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", (ROOT / "paper/paper.bib").read_text(), flags=re.MULTILINE))
