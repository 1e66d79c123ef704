# SPDX-License-Identifier: Apache-2.0
"""The errors of modelled step times, and the constants that are fitted to them."""

from dataclasses import replace

import pytest

from benchmarks.published import report
from benchmarks.published.errors import (
    best_share,
    error,
    fitted_shares,
    leaving_one_out,
    published_seconds,
)
from benchmarks.published.planned import SHARES, Planned
from benchmarks.published.rows import rows

ROWS = {row.name: row for row in rows()}
A_ROW = replace(ROWS["mt-16b-v5e-256"], ms=0, tf=0, tok=0, mfu=0)


def planned(at_peak, waiting=0.0, **changed):
    """A step of `waiting` seconds and of products that take `at_peak` at the peak."""
    seconds = [waiting + at_peak / share for share in SHARES]
    plan = Planned(10**9, 10**8, 4, 1e14, seconds[0], seconds, 0.0, 0.5, 0, 0, 0.0, 0.0)
    return replace(plan, **changed)


def pairs(*found):
    """Rows of 1 s each by (generation, apart, seconds at the peak)."""
    made = {}
    for number, (generation, apart, at_peak) in enumerate(found):
        on = f"8x{generation}" if generation == "h100" else f"{generation}-8"
        row = replace(A_ROW, name=f"row{number}", on=on, ms=1000, apart=apart)
        made[row.name] = (row, planned(at_peak))
    return made


def test_a_row_has_all_that_its_run_says():
    assert len(ROWS) == len(rows())
    row = ROWS["lingvo-1t16x16"]
    assert (row.generation, row.mesh, row.remat) == ("v3", {"x": 16, "y": 32}, "full")
    assert (row.tied, row.biases, row.ms, row.mfu, row.fits) == (True, False, 5850, 0, True)
    gpu = ROWS["titan-llama3-8b-128xh100"]
    assert (gpu.on_gpus, gpu.generation, gpu.remat) == (True, "h100", "selective")
    assert not ROWS["gold-2b-v5e"].fits
    assert {row.remat for row in ROWS.values()} == {"full", "selective", ""}


def test_seconds_follow_from_the_first_figure_that_is_published():
    plan, tokens = planned(1.0), A_ROW.batch * A_ROW.length
    assert published_seconds(A_ROW, plan) == 0
    by_mfu = replace(A_ROW, mfu=50)
    assert published_seconds(by_mfu, plan) == pytest.approx(6e9 * tokens / (0.5 * 4 * 1e14))
    by_tokens = replace(by_mfu, tok=100)
    assert published_seconds(by_tokens, plan) == pytest.approx(tokens / 400)
    by_flops = replace(by_tokens, tf=200)
    attention = 12 * A_ROW.layers * A_ROW.heads * A_ROW.head * A_ROW.length
    assert published_seconds(by_flops, plan) == pytest.approx(
        (6 * 9e8 + attention) * tokens / (4 * 200e12)
    )
    assert published_seconds(replace(by_flops, ms=1500), plan) == 1.5


def test_two_cores_are_one_chip():
    row = replace(A_ROW, on="v3-8", tok=100)
    assert published_seconds(row, planned(1.0)) == pytest.approx(row.tokens / 200)


def test_seconds_between_samples_are_linear_in_the_inverse_share():
    plan = planned(0.6, waiting=0.2)
    for share in (0.45, 0.5, 0.723, 0.9, 1.0):
        assert plan.at(share) == pytest.approx(0.2 + 0.6 / share)


def test_an_error_is_positive_where_the_model_is_slow():
    row = replace(A_ROW, ms=1000)
    assert error(row, planned(1.0), 1.25) == pytest.approx(0.25)
    assert error(row, planned(1.0), 0.75) == pytest.approx(-0.25)


def test_the_constant_that_fits_best_is_found():
    assert best_share(list(pairs(("v4", "", 0.8)).values())) == pytest.approx(0.8, abs=0.003)


def test_constants_are_of_a_generation_and_of_rows_that_count():
    found = pairs(("v4", "", 0.8), ("v4", "recalled", 0.5), ("v5e", "recalled", 0.6))
    assert fitted_shares(found) == pytest.approx({"v4": 0.8, "v5e": 0.6}, abs=0.003)


def test_leaving_one_out_does_not_see_the_row_that_is_judged():
    errors = leaving_one_out(pairs(("v4", "", 0.8), ("v4", "", 0.6), ("v5e", "", 0.7)))
    assert errors["row0"] == pytest.approx(0.8 / 0.6 - 1, abs=0.01)
    assert errors["row1"] == pytest.approx(0.6 / 0.8 - 1, abs=0.01)
    # No other row of its generation: the mean of the other generations' constants, which is v4's.
    alone = fitted_shares(pairs(("v4", "", 0.8), ("v4", "", 0.6)))["v4"]
    assert errors["row2"] == pytest.approx(0.7 / alone - 1, abs=0.01)


def test_rows_apart_and_gpus_have_means_of_their_own():
    found = pairs(("v4", "", 0.9), ("v4", "recalled", 2.0), ("h100", "", 0.5))
    assert report.means(found, "TPU", False)["without constants"] == pytest.approx(0.1)
    assert report.means(found, "TPU", True)["without constants"] == pytest.approx(1.0)
    assert report.means(found, "GPU", False)["without constants"] == pytest.approx(0.5)
    assert report.means(found, "GPU", True) == {}


@pytest.mark.parametrize(("fitted", "status"), [(1.09, 0), (1.11, 1)])
def test_the_status_says_whether_a_bound_is_missed(fitted, status, monkeypatch, capsys):
    row = replace(A_ROW, ms=1000)
    plan = planned(0.9, fitted=fitted)
    monkeypatch.setattr(report, "rows", lambda: [row])
    monkeypatch.setattr(report, "plan_apart", lambda row, memory: plan)
    monkeypatch.setattr("sys.argv", ["published"])
    assert report.main() == status
    assert ("MISSED" in capsys.readouterr().out) == bool(status)


def test_a_row_that_cannot_be_planned_fails(monkeypatch, capsys):
    monkeypatch.setattr(report, "plan_apart", lambda row, memory: "RuntimeError: broken")
    assert not report.report([A_ROW], memory=False, fit=False)
    assert "RuntimeError: broken" in capsys.readouterr().out


def test_the_row_that_does_not_fit_must_be_refused(monkeypatch, capsys):
    refused = "torch.OutOfMemoryError: the program needs 40 GiB"
    monkeypatch.setattr(report, "plan_apart", lambda row, memory: refused)
    assert report.report([ROWS["gold-2b-v5e"]], memory=True, fit=False)
    monkeypatch.setattr(report, "plan_apart", lambda row, memory: planned(0.9))
    assert not report.report([ROWS["gold-2b-v5e"]], memory=True, fit=False)
    assert "fits, but must not" in capsys.readouterr().out
