"""All benchmarks, or those named: `make bench ARGS="dcgan vit --quick"`.

Each is a script of this folder that prints lines

    name ours peer ratio required verdict

and leaves its numbers under $LOCKSTEP_BUILD/bench. Ends with a summary of all
lines; exit code 1 when a requirement is missed or a benchmark did not run.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", HERE.parent / "build"))
NAMES = ["agents", "collectives", "loader", "dcgan", "esrgan", "vit", "fsdp"]
NAMES += ["deepcoral", "output"]
NAMES += ["launch", "s3", "supervision", "economics", "balance"]
NAMES += ["cloud", "forest"]
OPTIONS = ["--quick", "--rounds", "--only", "--data", "--realtime"]


def parse_line(text):
    """The fields of a line, or None for any other output."""
    words = text.split()
    if len(words) < 6 or words[5] not in ("ok", "MISSED", "info"):
        return None
    try:
        numbers = [float(word) for word in words[1:4]]
    except ValueError:
        return None
    return {
        "name": words[0],
        "ours": numbers[0],
        "peer": numbers[1],
        "ratio": numbers[2],
        "required": None if words[4] == "-" else words[4],
        "verdict": words[5],
        "unit": " ".join(words[6:]).strip("[]"),
    }


def run_script(name, options):
    """The lines it printed and its exit code; output is shown as it comes."""
    print(f"## {name}", flush=True)
    command = [sys.executable, str(HERE / f"{name}.py"), *options]
    lines = []
    begun = time.time()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for text in process.stdout:
            print(text, end="", flush=True)
            line = parse_line(text)
            if line:
                lines.append(line)
        code = process.wait()
    finally:
        if process.poll() is None:  # we were stopped ourselves
            process.terminate()
            process.wait()
    keep_lines(name, lines, begun)
    return lines, code


def keep_lines(name, lines, begun):
    """A script that wrote no JSON of its own gets one of its lines."""
    path = BUILD / "bench" / f"{name}.json"
    if path.exists() and path.stat().st_mtime >= begun:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": name, "lines": lines}, indent=1) + "\n")


def main(argv):
    options = [word for word in argv if word.startswith("-")]
    names = [word for word in argv if not word.startswith("-")]
    names = names or [name for name in NAMES if (HERE / f"{name}.py").exists()]
    known = NAMES + OPTIONS
    unknown = [word for word in names + options if word.split("=")[0] not in known]
    if unknown:
        print(
            f"bench: unknown word '{unknown[0]}'; accepted: {' '.join(NAMES)} "
            "--quick --rounds=N --only=PART --data=NAME --realtime",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    everything = []
    failed = []
    for name in names:
        lines, code = run_script(name, options)
        everything += lines
        missed = any(line["verdict"] == "MISSED" for line in lines)
        if code != 0 and not missed:
            failed.append(f"{name} (exit code {code})")
    print("## summary: name ours peer ratio required verdict")
    for line in everything:
        print(
            f"{line['name']:34} {line['ours']:>10.5g} {line['peer']:>10.5g} "
            f"{line['ratio']:>8.3f} {line['required'] or '-':>8} {line['verdict']}"
        )
    summary = BUILD / "bench" / "summary.json"
    summary.write_text(
        json.dumps({"lines": everything, "failed": failed}, indent=1) + "\n"
    )
    missed = [line["name"] for line in everything if line["verdict"] == "MISSED"]
    for name in failed:
        print(f"did not run to its end: {name}")
    if missed:
        print(f"missed: {', '.join(missed)}")
    print(f"numbers: {summary.parent}")
    return 1 if missed or failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
