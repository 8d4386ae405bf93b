"""The files of record/ against other people's readers and writers."""

import json
import os
import pathlib
import re
import subprocess
import xml.etree.ElementTree

import numpy
import PIL.Image
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

PROBE = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", "build")) / "bin/record_probe"
ODD_NAME = 'gr\u00fc\u00df/\u6771 "q"\n'


def probe(*words, check=True):
    return subprocess.run(
        [PROBE, *map(str, words)], check=check, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    probe("write", folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "demo"
    probe("run", folder)
    return folder


@pytest.fixture(scope="module")
def board(written):
    files = list((written / "tensorboard").iterdir())
    assert len(files) == 1
    assert re.fullmatch(r"events\.out\.tfevents\.\d+\..+\.\d+", files[0].name)
    accumulator = event_accumulator.EventAccumulator(
        str(written / "tensorboard"),
        size_guidance={
            "scalars": 0, "images": 0, "histograms": 0, "tensors": 0,
        },
    )
    accumulator.Reload()
    return accumulator


# TensorBoard


def test_tensorboard_reads_scalars(board):
    assert set(board.Tags()["scalars"]) == {"loss/d", "caf\u00e9"}
    events = board.Scalars("loss/d")
    assert [e.step for e in events] == list(range(1, 101))
    assert events[2].value == pytest.approx(1 / 3)
    assert events[2].wall_time == 1.7e9 + 3
    (odd,) = board.Scalars("caf\u00e9")
    assert (odd.step, odd.value) == (1 << 33, -2.5)


def test_tensorboard_reads_images(board, tmp_path, written):
    (event,) = board.Images("samples")
    assert event.step == 7
    path = tmp_path / "x.png"
    path.write_bytes(event.encoded_image_string)
    shown = numpy.asarray(PIL.Image.open(path))
    assert shown.shape[:2] == (event.height, event.width)
    stored = numpy.asarray(PIL.Image.open(written / "grid.png"))
    assert (shown == stored).all()


def test_tensorboard_reads_histograms(board):
    assert set(board.Tags()["histograms"]) == {"weights", "nothing"}
    (event,) = board.Histograms("weights")
    value = event.histogram_value
    assert (value.min, value.max, value.num) == (-5, 5, 1001)
    assert value.sum == pytest.approx(0, abs=1e-3)
    assert value.sum_squares == pytest.approx(
        2 * sum((i / 100) ** 2 for i in range(501)), rel=1e-5
    )
    assert len(value.bucket) == len(value.bucket_limit)
    assert sum(value.bucket) == 1001
    assert list(value.bucket_limit) == sorted(value.bucket_limit)
    # Half of the values lie below zero.
    below = sum(
        count
        for count, limit in zip(value.bucket, value.bucket_limit)
        if limit <= 0
    )
    assert below == 500


def test_tensorboard_reads_text(board):
    (event,) = board.Tensors("config")
    assert board.SummaryMetadata("config").plugin_data.plugin_name == "text"
    words = tensor_util.make_ndarray(event.tensor_proto)
    assert list(words) == [b"some **words**"]


# safetensors


def test_safetensors_reads_ours(written):
    path = written / "ours.safetensors"
    tensors = safetensors.torch.load_file(path)
    expected = {
        "f32": torch.tensor([[1.5, -2, 3.25], [0, 1e30, -1e-30]]),
        "scalar": torch.tensor(1 / 3, dtype=torch.float64),
        "bf16": torch.tensor([1, -2], dtype=torch.bfloat16),
        "f16": torch.tensor([1, -2], dtype=torch.float16),
        "i64": torch.tensor([-5, 1 << 40]),
        "i32": torch.tensor([-7], dtype=torch.int32),
        "i16": torch.tensor([-300], dtype=torch.int16),
        "i8": torch.tensor([-8], dtype=torch.int8),
        "u8": torch.tensor([255, 0, 7], dtype=torch.uint8),
        "u16": torch.tensor([65535], dtype=torch.uint16),
        "u32": torch.tensor([4_000_000_000], dtype=torch.uint32),
        "u64": torch.tensor([2**64 - 1], dtype=torch.uint64),
        "bool": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        ODD_NAME: torch.tensor([255, 0, 7], dtype=torch.uint8),
    }
    assert set(tensors) == set(expected)
    for name, value in expected.items():
        assert tensors[name].dtype == value.dtype, name
        assert tensors[name].shape == value.shape, name
        assert tensors[name].tolist() == value.tolist(), name
    with safetensors.safe_open(path, "pt") as file:
        assert without_sum(file) == {
            "format": "pt", "caf\u00e9": "line 1\nline 2",
        }


def without_sum(file):
    """The metadata that the writer was given: it adds a checksum."""
    found = file.metadata()
    assert re.fullmatch("[0-9a-f]{8} [0-9a-f]{8}", found.pop("lockstep.crc32c"))
    return found


DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
    "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64,
    "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
}


def theirs(folder):
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name, dtype in DTYPES.items():
        raw = torch.randint(
            0, 2, (3, 5 * dtype.itemsize), generator=generator,
            dtype=torch.uint8,
        )
        tensors[f"x/{name}"] = raw.view(dtype)
    tensors[ODD_NAME] = torch.zeros(2, 0, 3)
    tensors["scalar"] = torch.tensor(2.5)
    path = folder / "theirs.safetensors"
    metadata = {"step": "12", "caf\u00e9": "\u6771"}
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    return path, tensors, metadata


def test_we_read_theirs(tmp_path):
    path, tensors, metadata = theirs(tmp_path)
    seen = json.loads(probe("dump", path).stdout)
    assert seen["metadata"] == metadata
    assert set(seen["tensors"]) == set(tensors)
    for name, tensor in tensors.items():
        got = seen["tensors"][name]
        assert got["shape"] == list(tensor.shape)
        raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert bytes.fromhex(got["hex"]) == raw, name
        if name.startswith("x/"):
            assert got["dtype"] == name[2:]


def test_a_copy_is_the_same_to_them(tmp_path):
    path, tensors, metadata = theirs(tmp_path)
    again = tmp_path / "again.safetensors"
    probe("copy", path, again)
    back = safetensors.torch.load_file(again)
    assert set(back) == set(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(
            back[name].reshape(-1).view(torch.uint8),
            tensor.reshape(-1).view(torch.uint8),
        ), name
    with safetensors.safe_open(again, "pt") as file:
        assert without_sum(file) == metadata


def test_empty_file_of_theirs(tmp_path):
    path = tmp_path / "none.safetensors"
    safetensors.numpy.save_file({}, path)
    assert "tensors" not in json.loads(probe("dump", path).stdout)


def test_every_cut_is_refused_with_the_file_named(tmp_path):
    path, _, _ = theirs(tmp_path)
    whole = path.read_bytes()
    cut = tmp_path / "cut.safetensors"
    for length in [0, 5, 8, 9, 200, len(whole) // 2, len(whole) - 1]:
        cut.write_bytes(whole[:length])
        result = probe("dump", cut, check=False)
        assert result.returncode == 1, length
        assert str(cut) in result.stderr


# Pictures and tables


def test_pil_opens_the_grid(written):
    image = PIL.Image.open(written / "grid.png")
    image.load()
    assert (image.mode, image.size) == ("RGB", (4 * 10 + 2, 2 * 10 + 2))
    pixels = numpy.asarray(image)
    assert tuple(pixels[0, 0]) == (0, 0, 0)
    assert tuple(pixels[2, 12]) == (40, 41, 42)


def test_pil_opens_grey(written):
    image = PIL.Image.open(written / "grey.png")
    assert image.mode == "L"
    assert numpy.asarray(image).tolist() == [[0, 50, 100], [150, 200, 250]]


def test_numbers_of_the_csv_are_exact(written):
    import csv

    with open(written / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "epoch", "a,b", "loss", "val"]
    assert float(rows[0]["a,b"]) == 1 / 3
    assert float(rows[0]["loss"]) == 0.1
    assert rows[0]["val"] == ""
    assert rows[1]["loss"] == "nan"
    assert float(rows[1]["val"]) == 1e-300


def inside(root):
    """Every drawn coordinate lies on the paper."""
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.iter():
        tag = element.tag.split("}")[1]
        if tag == "path":
            numbers = [float(n) for n in re.findall(r"-?[\d.]+", element.get("d"))]
            xs, ys = numbers[::2], numbers[1::2]
        elif tag in ("text", "rect"):
            xs, ys = [float(element.get("x", 0))], [float(element.get("y", 0))]
        else:
            continue
        assert all(0 <= x <= width for x in xs)
        assert all(0 <= y <= height for y in ys)


def test_plots_are_xml(written):
    for name in ["line.svg", "bars.svg"]:
        root = xml.etree.ElementTree.parse(written / name).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        inside(root)


def test_logbook_links_lead_somewhere(run):
    page = (run / "logbook.md").read_text()
    assert page.startswith("# fashion-dcgan\n")
    links = re.findall(r"\]\(<?([^)>]+)>?\)", page)
    pictures = [link for link in links if link.endswith(".svg")]
    assert {os.path.basename(p) for p in pictures} == {
        "losses.svg", "shares.svg", "throughput.svg", "time_split.svg",
        "memory.svg", "cpu.svg",
    }
    for link in links:
        # The probe writes no checkpoint, only the event of one.
        if not link.startswith("checkpoints/last"):
            assert (run / link).exists(), link
    for picture in pictures:
        inside(xml.etree.ElementTree.parse(run / picture).getroot())
