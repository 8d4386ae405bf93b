// Writes and reads the files of record/ for tests/test_record_formats.py, which
// holds them against other people's readers and writers.
//
//   record_probe write DIR     one of each file
//   record_probe run DIR       a run directory with a logbook
//   record_probe dump FILE     tensors of a safetensors file, as JSON
//   record_probe copy A B      reads A, writes it again as B

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "lockstep/record/csv.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/logbook.h"
#include "lockstep/record/plot.h"
#include "lockstep/record/png.h"
#include "lockstep/record/run_directory.h"
#include "lockstep/record/safetensors.h"
#include "lockstep/record/tensorboard.h"

namespace {

using namespace lockstep;
using namespace lockstep::record;

template <class Number>
TensorView view(
    std::string name,
    std::string dtype,
    std::vector<int64_t> shape,
    const std::vector<Number>& values) {
  return {
      std::move(name),
      std::move(dtype),
      std::move(shape),
      std::as_bytes(std::span(values))};
}

Result<void> write_tensors(const os::Path& folder) {
  const std::vector<float> floats = {1.5F, -2, 3.25F, 0, 1e30F, -1e-30F};
  const std::vector<double> doubles = {1.0 / 3};
  const std::vector<uint16_t> bf16 = {0x3f80, 0xc000};  // 1, -2
  const std::vector<uint16_t> f16 = {0x3c00, 0xc000};   // 1, -2
  const std::vector<int64_t> i64 = {-5, int64_t{1} << 40};
  const std::vector<int32_t> i32 = {-7};
  const std::vector<int16_t> i16 = {-300};
  const std::vector<int8_t> i8 = {-8};
  const std::vector<uint64_t> u64 = {~uint64_t{0}};
  const std::vector<uint32_t> u32 = {4'000'000'000};
  const std::vector<uint16_t> u16 = {65'535};
  const std::vector<uint8_t> u8 = {255, 0, 7};
  const std::vector<uint8_t> flags = {1, 0};
  const std::vector<float> none;
  return write_safetensors(
      os::real_files(),
      folder / "ours.safetensors",
      {view("u8", "U8", {3}, u8),
       view("f32", "F32", {2, 3}, floats),
       view("scalar", "F64", {}, doubles),
       view("bf16", "BF16", {2}, bf16),
       view("f16", "F16", {2}, f16),
       view("i64", "I64", {2}, i64),
       view("i32", "I32", {1}, i32),
       view("i16", "I16", {1}, i16),
       view("i8", "I8", {1}, i8),
       view("u64", "U64", {1}, u64),
       view("u32", "U32", {1}, u32),
       view("u16", "U16", {1}, u16),
       view("bool", "BOOL", {2}, flags),
       view("empty", "F32", {0, 4}, none),
       view("gr\xc3\xbc\xc3\x9f/\xe6\x9d\xb1 \"q\"\n", "U8", {3}, u8)},
      {{"format", "pt"}, {"caf\xc3\xa9", "line 1\nline 2"}});
}

Result<void> write_one_of_each(const os::Path& folder) {
  auto& files = os::real_files();
  LOCKSTEP_TRY(write_tensors(folder));

  std::vector<Image> images;
  for (int i = 0; i < 6; ++i) {
    Image image{8, 8, 3, std::vector<uint8_t>(8 * 8 * 3)};
    for (size_t k = 0; k < image.pixels.size(); ++k) {
      image.pixels[k] = static_cast<uint8_t>(i * 40 + static_cast<int>(k % 7));
    }
    images.push_back(std::move(image));
  }
  const Image grid = make_grid(images, 4, 2);
  LOCKSTEP_ASSIGN(const std::string png, encode_png(grid));
  LOCKSTEP_TRY(files.write_atomic(folder / "grid.png", png));
  const Image grey{2, 3, 1, {0, 50, 100, 150, 200, 250}};
  LOCKSTEP_ASSIGN(const std::string grey_png, encode_png(grey));
  LOCKSTEP_TRY(files.write_atomic(folder / "grey.png", grey_png));

  LOCKSTEP_ASSIGN(
      auto board, TensorBoardWriter::open(files, folder / "tensorboard"));
  for (int step = 1; step <= 100; ++step) {
    LOCKSTEP_TRY(board->scalar("loss/d", 1.0 / step, step, 1.7e9 + step));
  }
  LOCKSTEP_TRY(board->scalar("caf\xc3\xa9", -2.5, int64_t{1} << 33, 1.7e9));
  LOCKSTEP_TRY(board->image("samples", grid, 7, 1.7e9));
  std::vector<float> values;
  for (int i = -500; i <= 500; ++i) {
    values.push_back(static_cast<float>(i) / 100);
  }
  LOCKSTEP_TRY(board->histogram("weights", values, 9, 1.7e9));
  LOCKSTEP_TRY(board->histogram("nothing", {}, 9, 1.7e9));
  LOCKSTEP_TRY(board->text("config", "some **words**", 1, 1.7e9));
  LOCKSTEP_TRY(board->flush());

  LOCKSTEP_ASSIGN(
      auto table, MetricsTable::open(files, folder / "metrics.csv"));
  LOCKSTEP_TRY(table.add(1, 0, {{"loss", 0.1}, {"a,b", 1.0 / 3}}));
  LOCKSTEP_TRY(table.add(2, 0, {{"loss", std::nan("")}, {"val", 1e-300}}));

  Series noisy{"a < b & \"c\" \xff\x01", {}, {}};
  for (int i = 0; i < 10'000; ++i) {
    noisy.x.push_back(i);
    noisy.y.push_back(i % 100 == 0 ? std::nan("") : std::sin(i * 0.001));
  }
  LOCKSTEP_TRY(files.write_atomic(
      folder / "line.svg",
      plot_svg(
          {noisy, {"one", {5}, {0.5}}}, {.title = "<&>", .smooth = true})));
  Bars bars;
  bars.parts = {"data", "compute"};
  bars.rows = {{"rank <0>", {1, 9}}, {"rank 1", {2, 8}}};
  bars.title = "Split & more";
  return files.write_atomic(folder / "bars.svg", bars_svg(bars));
}

// A DCGAN's course as it might be, for looking at the page.
Result<void> write_run(const os::Path& folder) {
  LOCKSTEP_ASSIGN(auto run, RunDirectory::open(folder));
  auto& files = os::real_files();
  constexpr int kRanks = 2;
  constexpr int kSteps = 400;
  constexpr double kStart = 1.7e9;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::string lines;
  const auto add = [&](double time, int rank, wire::EventBody body) {
    lines += wire::to_json(
        {kStart + time, rank, rank < 0 ? "" : "node1", std::move(body)});
    lines += '\n';
  };
  LOCKSTEP_ASSIGN(auto table, MetricsTable::open(files, run.metrics()));
  for (int rank = 0; rank < kRanks; ++rank) {
    add(1.2,
        rank,
        wire::Init{
            "lockstep-train dcgan",
            kRanks,
            0.9,
            {{"device", "cpu"},
             {"cpu", "AMD EPYC 9R14"},
             {"precision", "fp32"},
             {"collective", "host"},
             {"batch_size", "16"}}});
  }
  double time = 1.2;
  for (int step = 1; step <= kSteps; ++step) {
    const double total =
        (step == 1 ? 0.9 : 0.23) + 0.01 * std::abs(normal(random));
    time += total;
    for (int rank = 0; rank < kRanks; ++rank) {
      wire::Iteration body{step, step / 200, 16, 0.002, 0, 0.012, 0, total};
      body.wait =
          (rank == 0 ? 0.004 : 0.019) + 0.001 * std::abs(normal(random));
      body.compute = total - body.data - body.communication - body.wait;
      add(time, rank, body);
      if (step % 4 == 0) {
        add(time,
            rank,
            wire::Resource{
                4.2e8 + 2e7 * rank + 4e7 * (1 - std::exp(-step / 60.0)),
                0.97 - 0.02 * std::abs(normal(random)),
                0,
                0});
      }
    }
    LOCKSTEP_TRY(table.add(
        step,
        step / 200,
        {{"loss_d",
          0.35 + 1.1 * std::exp(-step / 40.0) +
              0.08 * std::abs(normal(random))},
         {"loss_g",
          2.2 + 2 * (1 - std::exp(-step / 80.0)) + 0.5 * normal(random)},
         {"d_x", 0.8 + 0.05 * normal(random)},
         {"d_g_z", 0.2 + 0.04 * normal(random)}}));
    if (step % 100 == 0) {
      add(time,
          0,
          wire::Checkpoint{
              step,
              (run.checkpoints() / "last.safetensors").string(),
              step == kSteps ? "final" : "periodic",
              0.21});
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    add(time + 0.3, rank, wire::Exit{});
  }
  LOCKSTEP_TRY(files.write_atomic(run.events(), lines));
  std::vector<Image> images(8, Image{8, 8, 1, std::vector<uint8_t>(64, 128)});
  LOCKSTEP_ASSIGN(const std::string png, encode_png(make_grid(images)));
  LOCKSTEP_TRY(files.write_atomic(run.samples() / "fake-000400.png", png));
  return write_logbook(
      run,
      {.name = "fashion-dcgan",
       .command = "lockstep run examples/dcgan_fashion.yaml",
       .price_per_hour = Money::from_dollars(0.085),
       .price_source = "--price"});
}

Result<void> dump(const os::Path& path) {
  LOCKSTEP_ASSIGN(auto file, SafetensorsFile::open(path));
  nlohmann::json out = {{"metadata", file.metadata()}};
  for (const TensorView& tensor : file.tensors()) {
    std::string hex;
    for (const std::byte byte : tensor.bytes) {
      hex += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    }
    out["tensors"][tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"hex", hex}};
  }
  fmt::print("{}\n", out.dump());
  return {};
}

Result<void> copy(const os::Path& from, const os::Path& to) {
  LOCKSTEP_ASSIGN(auto file, SafetensorsFile::open(from));
  return write_safetensors(
      os::real_files(), to, file.tensors(), file.metadata());
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> words(values + 1, values + count);
  Result<void> result = Error(
      ErrorCode::kInvalidInput,
      "record_probe write DIR | run DIR | dump FILE | copy A B");
  if (words.size() == 2 && words[0] == "write") {
    result = write_one_of_each(words[1]);
  } else if (words.size() == 2 && words[0] == "run") {
    result = write_run(words[1]);
  } else if (words.size() == 2 && words[0] == "dump") {
    result = dump(words[1]);
  } else if (words.size() == 3 && words[0] == "copy") {
    result = copy(words[1], words[2]);
  }
  if (!result) {
    fmt::print(stderr, "{}\n", result.error().to_string());
    return 1;
  }
  return 0;
}
