"""A rank that prints 100 MB: its time under `lockstep run` against its time when
it prints to a file. Both sides run in turn; the medians are compared."""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import measure

PRINT = """
import sys, time
begun = time.monotonic()
line = b"x" * 99 + b"\\n"
for number in range(int(sys.argv[1])):
    sys.stdout.buffer.write(line)
sys.stdout.flush()
with open(sys.argv[2], "w") as file:
    file.write(str(time.monotonic() - begun))
"""
REQUIRED = "<=1.2"


def main():
    arguments = measure.parse_arguments(__doc__)
    rounds = arguments.rounds if arguments.quick else max(arguments.rounds, 5)
    lines = 200_000 if arguments.quick else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "print.py").write_text(PRINT)
        command = [sys.executable, str(folder / "print.py"), str(lines)]
        lockstep = [str(measure.BUILD / "bin" / "lockstep"), "run"]
        lockstep += ["--runs-dir", str(folder / "runs")]

        def under_lockstep():
            with open(os.devnull, "wb") as nothing:
                words = [*lockstep, "--", *command, str(folder / "seconds")]
                subprocess.run(words, stdout=nothing, stderr=nothing, check=True)
            return float((folder / "seconds").read_text())

        def to_file():
            with open(folder / "plain.txt", "wb") as file:
                words = [*command, str(folder / "seconds")]
                subprocess.run(words, stdout=file, check=True)
            return float((folder / "seconds").read_text())

        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(under_lockstep())
            theirs.append(to_file())
    table = measure.Table("output")
    table.add(
        f"output/{lines * 100 // 1_000_000}MB",
        statistics.median(ours),
        statistics.median(theirs),
        REQUIRED,
        "s",
    )
    table.runs = {"lockstep": ours, "file": theirs}
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
