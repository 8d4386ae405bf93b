"""One head and many agents: what an agent costs, and how fast a verdict comes.

    LOCKSTEP_BUILD=build .venv/bin/python3 bench/agents.py [--quick]

10, 100 and 1,000 agents (and some sizes between, for the plot) are simulated by
one thread of one process; a real hub and coordinator serve them on another.
All join, beat every second and send ten events a second each; then one rank
fails. The verdict must be there in 2 s, and the CPU time of the head for each
agent must not grow with their number. Before that, one real agent with four
ranks that print and write ten events a second: its memory and CPU time. There
is no peer: the limit is in its place. Writes $LOCKSTEP_BUILD/bench/agents.json, agents_cost.svg and
agents_verdict.svg.
"""

import json
import subprocess
import sys

import measure

SIZES = [10, 100, 300, 600, 1000]
QUICK_SIZES = [10, 100]
SECONDS = 4
QUICK_SECONDS = 1
LIMIT = 2.0  # seconds to a verdict
MEMORY = 20.0  # MiB of an agent
CPU = 1.0  # percent of a core
LEAST = 10  # agents against whose cost the others' is held


def run_program(*words):
    """The JSON lines that agents_bench prints."""
    program = measure.BUILD / "bin" / "agents_bench"
    if not program.exists():
        sys.exit(f"agents: {program} is not there; run 'make build'")
    done = subprocess.run(
        [str(program), *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=measure.LIMIT,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"agents: agents_bench ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(argv=None):
    arguments = measure.parse_arguments(__doc__, argv)
    sizes = QUICK_SIZES if arguments.quick else SIZES
    seconds = QUICK_SECONDS if arguments.quick else SECONDS
    table = measure.Table("agents")
    folder = measure.BUILD / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    lockstep = measure.BUILD / "bin" / "lockstep"
    real = run_program(3 * seconds, folder, "real", lockstep)[0]
    table.runs["real"] = real
    memory = real["peak_bytes"] / 2**20
    table.add("agent-memory", memory, MEMORY, "<=1", "MiB, limit")
    table.add("agent-cpu", real["cpu_percent"], CPU, "<=1", "% of a core, limit")
    runs = {run["agents"]: run for run in run_program(seconds, folder, *sizes)}
    table.runs |= {str(size): runs[size] for size in sizes}
    for size in sizes:
        run = runs[size]
        print(
            f"# {size} agents: joined in {run['join_seconds']:.2f} s, "
            f"{run['events_per_second']:.0f} events/s, "
            f"{run['cpu_us_per_agent_second']:.0f} us of CPU an agent and second, "
            f"all ended in {run['end_seconds']:.2f} s, "
            f"peak {run['peak_bytes'] / 2**20:.0f} MiB with the simulation",
            flush=True,
        )
        verdict = run["verdict_seconds"]
        table.add(f"agents-{size}-verdict", verdict, LIMIT, "<=1", "s, limit")
        if size != LEAST:
            # Cheaper for more agents is fine: then a wake-up serves several.
            table.add(
                f"agents-{size}-cost",
                run["cpu_us_per_agent_second"],
                runs[LEAST]["cpu_us_per_agent_second"],
                "<=1.25",
                f"us, {LEAST} agents",
            )
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
