"""Every example runs, and says something a wrong sampler would not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments):
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / f"{name}.py"), "--quick", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def test_quickstart(tmp_path):
    picture = tmp_path / "columns.png"
    text = run("quickstart", "--output", str(picture))
    assert picture.stat().st_size > 5000
    assert "divergences: 0" in text
    # the market is the first component, well determined: its angle to the mean is small
    angle = float(re.search(r"angle\[0\]\s+(\S+)", text).group(1))
    assert angle < 0.15
    scales = [float(s) for s in re.search(r"scales: \[(.*?)\]", text).group(1).split()]
    assert scales[0] == pytest.approx(1.7, abs=0.2)
    assert scales[1] < 1.0
