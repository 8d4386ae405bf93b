"""Values of `secrets` in what lockstep writes and shows."""

import json
import re
import sys

import pytest

from control import without_leftovers


@pytest.fixture
def control(tmp_path):
    yield from without_leftovers(tmp_path)


def test_secrets_are_redacted(control):
    control.script(
        "job.yaml",
        "run: echo token $TOKEN; test $RANK = 0\nsecrets: {TOKEN: null}\nprocs_per_node: 2\n",
    )
    result = control.call("run", "job.yaml", env={"TOKEN": "hunter2-long"})
    assert result.returncode == 1
    run = control.run()
    # The rank got it; what lockstep writes does not tell it.
    assert "hunter2-long" in run.log(0)
    assert "hunter2-long" not in result.stderr + result.stdout
    assert "token ***" in result.stderr
    for name in ("job.yaml", "events.jsonl", "logbook.md", "state.json"):
        assert "hunter2-long" not in (run.path / name).read_text(), name
    dry = control.call("run", "job.yaml", "--dry-run", env={"TOKEN": "hunter2-long"})
    assert dry.returncode == 0 and "hunter2-long" not in dry.stdout
    result = control.call("run", "job.yaml")
    assert result.returncode == 2 and "TOKEN is not set" in result.stderr


TELLING = """import lockstep, os
token = os.environ["TOKEN"]
lockstep.init(program="with " + token, facts={"login": token, token: "x"})
lockstep.phase("at " + token)
lockstep.iteration(1)
lockstep.metric({token: 1.5}, step=1)
lockstep.checkpoint("/models/" + token, step=1)
raise SystemExit("no login with " + token)
"""


@pytest.mark.parametrize("secret", ["hunter2-long", "pa\"ss'wo\\rd-\u00fc"])
def test_secrets_in_events_of_ranks_are_redacted(control, secret):
    control.script("telling.py", TELLING)
    control.script("job.yaml", f"run: ['{sys.executable}', telling.py]\nsecrets: {{TOKEN: null}}\n")
    result = control.call("run", "job.yaml", "--retries", "1", env={"TOKEN": secret})
    assert result.returncode == 1, result.stderr
    run = control.run()
    assert secret in run.log(0)
    kinds = [event["kind"] for event in run.events()]
    assert kinds.count("checkpoint") == 2 and "metric" in kinds and "decision" in kinds
    report = control.call("report", "last")
    assert report.returncode == 0, report.stderr
    shown = {name: (run.path / name).read_text() for name in ("events.jsonl", "logbook.md", "state.json", "metrics.csv")}
    shown["report"] = report.stdout + control.call("--output", "json", "report", "last").stdout
    shown["output"] = result.stdout + result.stderr
    for name, text in shown.items():
        assert secret not in text and json.dumps(secret)[1:-1] not in text, (name, text)
    assert "/models/***" in shown["events.jsonl"]


def test_secrets_that_are_quoted_are_redacted(control):
    def check(secret, *words):
        told = control.call("run", *words, "secrets={TOKEN: null}", "--dry-run", "--", "echo", secret, env={"TOKEN": secret})
        assert told.returncode == 0, told.stderr
        done = control.call("run", *words, "secrets={TOKEN: null}", "--", "echo", secret, env={"TOKEN": secret})
        assert done.returncode == 0, done.stderr
        run = control.runs()[-1]
        texts = [told.stdout] + [
            (run.path / name).read_text() for name in ("job.yaml", "events.jsonl", "state.json", "logbook.md")
        ]
        for text in texts:
            for part in re.findall(r"\w+", secret):
                assert part not in text, (part, text)
        assert "***" in texts[0]

    check("q7z'bc123")
    check('paq"zzq\\wqo')
    check("lnq1 xq2\nlnq3 xq4")


def test_a_key_is_no_secret(control):
    dry = control.call("run", "secrets={TOKEN: null}", "--dry-run", "--", "true", env={"TOKEN": "run"})
    assert dry.returncode == 0 and 'run: ["true"]' in dry.stdout, dry.stdout


def test_a_secret_is_no_variable_besides(control):
    result = control.call(
        "run", "--env", "TOKEN=other", "secrets={TOKEN: null}", "--", "true", env={"TOKEN": "hunter2-long"}
    )
    assert result.returncode == 2, result.stderr
    assert "TOKEN stands in 'secrets'" in result.stderr
    assert not control.runs()
