"""Any Python program as a full member of a lockstep run.

One file, standard library only, Python 3.8 and later. Ranks of `lockstep run`
find it on their path (docs/operations.md); elsewhere copy it beside the script.

    import lockstep

    lockstep.init(program="my training")
    for epoch in range(3):
        lockstep.phase("train")
        for batch in loader:
            with lockstep.step(samples=len(batch), epoch=epoch) as step:
                with step.communication():
                    ...
            lockstep.metric(loss=loss.item())
            if lockstep.stop_requested():
                save(); lockstep.checkpoint(path, reason="signal"); return
        lockstep.epoch(epoch)

Events go to the file that LOCKSTEP_EVENTS names, in the schema of
docs/events.md; without that variable every call does nothing. Writing never
blocks training: a thread appends, and when the disk stalls `iteration` and
`resource` events are dropped and counted (dropped()), others wait in memory.
Any thread may call; a forked child (a loader's worker) writes nothing.

With Lightning: `Trainer(callbacks=[lockstep.LightningCallback()])`.
"""

import atexit
import collections
import contextlib
import json
import math
import os
import signal
import socket
import sys
import threading
import time

__all__ = [
    "checkpoint",
    "dropped",
    "enabled",
    "epoch",
    "flush",
    "init",
    "iteration",
    "metric",
    "phase",
    "resource",
    "step",
    "stop_requested",
]

VERSION = 1  # of the schema
_QUEUE = 8192  # events that may wait before droppable ones are dropped
_PERIOD = 0.05  # seconds between two looks of the writer
_LAST_WORDS = 5.0  # seconds that the end of the program may wait for the disk
_MAY_DROP = ("iteration", "resource")
_STARTED = time.time()


class _Writer:
    """Appends lines from a thread; never raises into the program."""

    def __init__(self, path):
        self.path = path
        self.dropped = 0
        self._waiting = collections.deque()
        self._wake = threading.Condition()
        self._urgent = False
        self._busy = False
        self._file = None
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, line, may_drop):
        with self._wake:
            if may_drop and len(self._waiting) >= _QUEUE:
                self.dropped += 1
                return
            self._waiting.append(line)
            self._urgent = self._urgent or not may_drop
            if self._urgent or len(self._waiting) == 1:
                self._wake.notify_all()

    def flush(self, seconds):
        end = time.monotonic() + seconds
        with self._wake:
            while self._waiting or self._busy:
                self._urgent = True
                self._wake.notify_all()
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._wake.wait(left)
        return True

    def _run(self):
        while True:
            with self._wake:
                while not self._waiting:
                    self._wake.wait()
                if not self._urgent:
                    self._wake.wait(_PERIOD)  # gather some
                text = b"".join(self._waiting)
                self._waiting.clear()
                self._urgent = False
                self._busy = True
            while text:
                try:
                    text = text[self._append(text) :]
                except OSError:
                    time.sleep(_PERIOD)  # a full disk may have room again
            with self._wake:
                self._busy = False
                self._wake.notify_all()

    def _append(self, text):
        if self._file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o666)
        return os.write(self._file, text)


class _State:
    """What one process knows; a forked child gets a silent one."""

    def __init__(self, path):
        self.writer = _Writer(path) if path else None
        self.lock = threading.Lock()
        self.rank = _number("RANK", 0)
        self.node = socket.gethostname()
        self.begun = False  # init was written
        self.step = 0
        self.epoch = 0
        self.last = None  # monotonic end of the last iteration
        self.epoch_begin = None
        self.epoch_steps = 0
        self.epoch_samples = 0


def _number(name, default):
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return default


_state = None
_state_lock = threading.Lock()
_stop = False
_installed = {}  # signal: (our handler, the one before)


def _get():
    global _state
    if _state is None:
        with _state_lock:
            if _state is None:
                _state = _State(os.environ.get("LOCKSTEP_EVENTS", ""))
    return _state


def _silence():
    """In a forked child: the thread is not there, and it is not the rank. A
    loader's worker must end when its parent says so."""
    global _state, _state_lock
    _state_lock = threading.Lock()
    _state = _State("")
    for number, (ours, before) in list(_installed.items()):
        if signal.getsignal(number) is ours:
            signal.signal(number, signal.SIG_DFL if before is None else before)
    _installed.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_silence)


def _finite(value):
    value = float(value)
    return value if math.isfinite(value) else None


def _write(kind, fields):
    state = _get()
    if state.writer is None:
        return
    event = {
        "v": VERSION,
        "kind": kind,
        "time": time.time(),
        "rank": state.rank,
        "node": state.node,
    }
    event.update(fields)
    line = json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n"
    state.writer.add(line.encode(), kind in _MAY_DROP)


def enabled():
    """True when events go somewhere."""
    return _get().writer is not None


def dropped():
    """How many events were dropped because the disk stalled."""
    writer = _get().writer
    return writer.dropped if writer else 0


def flush(seconds=_LAST_WORDS):
    """Waits until what was written is in the file; False when it is not."""
    writer = _get().writer
    return writer.flush(seconds) if writer else True


def init(program=None, facts=None, stop_signal=None):
    """The rank is ready to train. Also installs the stop flag's handler.

    program: what runs, as a person would name it. facts: texts by name (device,
    precision, ...). stop_signal: the one of the job, when it is not SIGTERM.
    """
    _install(stop_signal)
    state = _get()
    with state.lock:
        state.begun = True
        state.last = time.monotonic()
        state.epoch_begin = state.last
    _write(
        "init",
        {
            "program": program or os.path.basename(sys.argv[0] or "python"),
            "world_size": _number("WORLD_SIZE", 1),
            "seconds": max(0.0, time.time() - _STARTED),
            "facts": {str(k): str(v) for k, v in (facts or {}).items()},
        },
    )


def phase(name):
    """The rank goes over to another part of its work: "train", "validation"."""
    _write("phase", {"name": str(name)})


def iteration(
    step=None,
    samples=0,
    data=0.0,
    compute=None,
    communication=0.0,
    wait=0.0,
    total=None,
    epoch=None,
):
    """One step of the main loop ended. Seconds; the four parts sum to total.

    What is left out is found: step is one more than the last, total the sum of
    the parts (without compute: the time since the last iteration), compute what
    the other parts leave of the total.
    """
    state = _get()
    now = time.monotonic()
    with state.lock:
        step = state.step + 1 if step is None else int(step)
        epoch = state.epoch if epoch is None else int(epoch)
        others = data + communication + wait
        if total is None:
            if compute is not None:
                total = others + compute
            else:
                since = now - state.last if state.last is not None else 0.0
                total = max(since, others)
        if compute is None:
            compute = max(total - others, 0.0)
        # A part that was measured too long must not break the sum.
        total = others + compute
        state.step = step
        state.epoch = epoch
        if state.epoch_begin is None:
            state.epoch_begin = now - total
        state.last = now
        state.epoch_steps += 1
        state.epoch_samples += int(samples)
    _write(
        "iteration",
        {
            "step": step,
            "epoch": epoch,
            "samples": int(samples),
            "data": _finite(data),
            "compute": _finite(compute),
            "communication": _finite(communication),
            "wait": _finite(wait),
            "total": _finite(total),
        },
    )


def metric(values=None, step=None, epoch=None, **named):
    """Numbers that describe the training: metric({"loss": x}) or metric(loss=x).
    What is no number is left out."""
    state = _get()
    numbers = {}
    for name, value in {**(values or {}), **named}.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[str(name)] = _finite(value)
    _write(
        "metric",
        {
            "step": state.step if step is None else int(step),
            "epoch": state.epoch if epoch is None else int(epoch),
            "values": numbers,
        },
    )


def epoch(number=None, steps=None, samples=None, seconds=None):
    """An epoch ended. What is left out is counted since the last one."""
    state = _get()
    now = time.monotonic()
    with state.lock:
        number = state.epoch if number is None else int(number)
        begin = state.epoch_begin if state.epoch_begin is not None else now
        fields = {
            "epoch": number,
            "steps": state.epoch_steps if steps is None else int(steps),
            "samples": state.epoch_samples if samples is None else int(samples),
            "seconds": now - begin if seconds is None else _finite(seconds),
        }
        state.epoch = number + 1
        state.epoch_begin = now
        state.epoch_steps = 0
        state.epoch_samples = 0
    _write("epoch", fields)


def checkpoint(path, step=None, reason="periodic", seconds=0.0):
    """A checkpoint is complete on the disk. reason: periodic, best, final,
    signal."""
    state = _get()
    _write(
        "checkpoint",
        {
            "step": state.step if step is None else int(step),
            "path": str(path),
            "reason": str(reason),
            "seconds": _finite(seconds),
        },
    )


def resource(resident_bytes=0.0, cpu=0.0, gpu_use=0.0, gpu_memory_bytes=0.0):
    """What this process uses now."""
    _write(
        "resource",
        {
            "resident_bytes": _finite(resident_bytes),
            "cpu": _finite(cpu),
            "gpu_use": _finite(gpu_use),
            "gpu_memory_bytes": _finite(gpu_memory_bytes),
        },
    )


class step:  # noqa: N801  reads as a word: `with lockstep.step(...) as step`
    """Measures one step. Time inside data(), communication() and wait() goes to
    those parts, the rest is compute; waiting for data before the step can be
    given as `data`. A step that raises is not written."""

    def __init__(self, samples=0, number=None, epoch=None, data=0.0):
        self.samples = samples
        self.number = number
        self.epoch_number = epoch
        self.parts = {"data": float(data), "communication": 0.0, "wait": 0.0}
        self._before = float(data)
        self._begin = 0.0

    def __enter__(self):
        self._begin = time.monotonic()
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            total = time.monotonic() - self._begin + self._before
            iteration(
                self.number,
                samples=self.samples,
                total=total,
                epoch=self.epoch_number,
                **self.parts,
            )
        return False

    @contextlib.contextmanager
    def _part(self, name):
        begin = time.monotonic()
        try:
            yield
        finally:
            self.parts[name] += time.monotonic() - begin

    def data(self):
        return self._part("data")

    def communication(self):
        return self._part("communication")

    def wait(self):
        return self._part("wait")


def stop_requested():
    """True once lockstep asked this rank to end (stop_signal): write a
    checkpoint and leave within the grace time."""
    if not _installed:
        _install(None)
    return _stop


def _stop_number(told):
    """Names and numbers as a job file may have them: SIGUSR1, USR1 or 10."""
    if told is None:
        told = os.environ.get("LOCKSTEP_STOP_SIGNAL", "SIGTERM")
    if isinstance(told, str):
        for name, number in signal.Signals.__members__.items():
            if told in (name, name[3:], str(int(number))):
                return number
        return signal.SIGTERM
    return signal.Signals(told)


def _install(number):
    """Sets the handler, before whatever was there, which is called after it.
    Only the main thread may; elsewhere the flag stays down."""
    number = _stop_number(number)
    if number not in _installed:
        before = signal.getsignal(number)
        _set_handler(number, before, [before] if callable(before) else [])


def _set_handler(number, before, others):
    owner = os.getpid()

    def handle(received, frame):
        global _stop
        if os.getpid() != owner:
            # A child, in the moment before its own handlers were set.
            signal.signal(received, before if before else signal.SIG_DFL)
            os.kill(os.getpid(), received)
            return
        _stop = True
        for other in others:
            other(received, frame)

    try:
        signal.signal(number, handle)
    except ValueError:
        return
    _installed[number] = (handle, before)


@atexit.register
def _last_words():
    if _state is not None and _state.writer is not None:
        _state.writer.flush(_LAST_WORDS)


# Lightning. The class is made when it is first asked for, so that programs
# without Lightning never import it.


def _lightning():
    """The package that the program uses, when both names are installed."""
    import importlib

    names = ["lightning.pytorch", "pytorch_lightning"]
    names.sort(key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("lockstep.LightningCallback needs lightning or pytorch_lightning")


def _install_over_lightning():
    """Lightning's handler of SIGTERM starts a collective from inside the
    handler, which hangs when the other ranks are in another one. Ours takes its
    place and calls what others had set."""
    number = _stop_number(None)
    before = signal.getsignal(number)
    parts = getattr(before, "signal_handlers", None)
    if parts is None:
        _install(None)
        return
    ours = [handler for handler, _ in _installed.values()]
    others = []
    for part in parts:
        home = type(getattr(part, "__self__", None)).__module__
        if part not in ours and not home.startswith(("lightning", "pytorch_light")):
            others.append(part)
    _set_handler(number, signal.SIG_DFL, [o for o in others if callable(o)])


def _batch_samples(batch):
    """Samples of a batch: the first dimension of its first tensor."""
    if hasattr(batch, "shape") and len(batch.shape) > 0:
        return int(batch.shape[0])
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            found = _batch_samples(part)
            if found:
                return found
    return 0


def _make_callback():
    base = _lightning().Callback

    class LightningCallback(base):
        """Events of a Lightning training, and a graceful end on stop_signal.

        stop_every: steps between two looks at the stop flag; all ranks look at
        the same step and agree, so none trains on alone. save_on_stop: writes
        last.ckpt into LOCKSTEP_CHECKPOINTS (elsewhere the trainer's folder).
        """

        def __init__(self, stop_every=1, save_on_stop=True):
            super().__init__()
            self.stop_every = max(1, int(stop_every))
            self.save_on_stop = save_on_stop
            self._end = None  # of the last batch
            self._data = 0.0
            self._steps = 0
            self._epoch_begin = None
            self._epoch_steps = 0
            self._epoch_samples = 0
            self._saved = {}
            self._stopping = False

        def on_fit_start(self, trainer, pl_module):
            init(
                program=type(pl_module).__name__ + " (Lightning)",
                facts={
                    "strategy": type(trainer.strategy).__name__,
                    "device": str(pl_module.device),
                    "precision": str(trainer.precision),
                },
            )
            self._steps = int(trainer.global_step)
            self._saved = self._paths(trainer)

        def on_train_start(self, trainer, pl_module):
            _install_over_lightning()  # by now it has set its own

        def on_train_epoch_start(self, trainer, pl_module):
            self._tell_checkpoints(trainer)
            phase("train")
            self._epoch_begin = self._end = time.monotonic()
            self._epoch_steps = self._epoch_samples = 0

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self._tell_checkpoints(trainer)
            now = time.monotonic()
            self._data = now - self._end if self._end is not None else 0.0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            now = time.monotonic()
            samples = _batch_samples(batch)
            self._steps += 1
            self._epoch_steps += 1
            self._epoch_samples += samples
            begin = self._end if self._end is not None else now
            iteration(
                self._steps,
                samples=samples,
                data=self._data,
                total=now - begin,
                epoch=trainer.current_epoch,
            )
            if self._steps % max(1, trainer.log_every_n_steps) == 0:
                self._tell_metrics(trainer)
            self._look_for_stop(trainer)
            self._end = time.monotonic()

        def on_train_epoch_end(self, trainer, pl_module):
            self._tell_metrics(trainer)
            begin = self._epoch_begin
            epoch(
                trainer.current_epoch,
                steps=self._epoch_steps,
                samples=self._epoch_samples,
                seconds=time.monotonic() - begin if begin is not None else 0.0,
            )

        def on_validation_start(self, trainer, pl_module):
            if not trainer.sanity_checking:
                phase("validation")

        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                self._tell_metrics(trainer)
                phase("train")

        def on_train_end(self, trainer, pl_module):
            self._tell_checkpoints(trainer)

        def teardown(self, trainer, pl_module, stage):
            self._tell_checkpoints(trainer)
            flush()

        def on_exception(self, trainer, pl_module, exception):
            flush()

        def _tell_metrics(self, trainer):
            values = {}
            for name, value in trainer.callback_metrics.items():
                with contextlib.suppress(TypeError, ValueError, RuntimeError):
                    values[name] = float(value)
            if values:
                metric(values, step=self._steps, epoch=trainer.current_epoch)

        def _paths(self, trainer):
            found = {}
            for callback in getattr(trainer, "checkpoint_callbacks", []):
                best = getattr(callback, "best_model_path", "")
                last = getattr(callback, "last_model_path", "")
                for path, reason in ((best, "best"), (last, "periodic")):
                    if path:
                        found[path] = reason
            return found

        def _tell_checkpoints(self, trainer):
            """Those that callbacks finished since the last look."""
            found = self._paths(trainer)
            for path, reason in found.items():
                if path not in self._saved and trainer.is_global_zero:
                    checkpoint(path, step=self._steps, reason=reason)
            self._saved = found

        def _look_for_stop(self, trainer):
            if self._stopping or self._steps % self.stop_every:
                return
            wanted = stop_requested()
            if trainer.world_size > 1:
                wanted = trainer.strategy.reduce_boolean_decision(wanted, all=False)
            if not wanted:
                return
            self._stopping = True
            if self.save_on_stop:
                begin = time.monotonic()
                folder = os.environ.get("LOCKSTEP_CHECKPOINTS")
                folder = folder or trainer.default_root_dir
                path = os.path.join(folder, "last.ckpt")
                trainer.save_checkpoint(path)
                if trainer.is_global_zero:
                    seconds = time.monotonic() - begin
                    checkpoint(path, self._steps, "signal", seconds)
            trainer.should_stop = True

    return LightningCallback


def __getattr__(name):
    if name == "LightningCallback":
        globals()[name] = _make_callback()
        return globals()[name]
    raise AttributeError("module 'lockstep' has no attribute %r" % name)
