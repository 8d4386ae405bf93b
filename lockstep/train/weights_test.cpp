#include "lockstep/train/weights.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

#include "lockstep/record/safetensors.h"
#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

class WeightsFile : public ::testing::Test {
 protected:
  WeightsFile() {
    std::string name = ::testing::TempDir() + "lockstep-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~WeightsFile() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path path() const { return folder_ / "w.safetensors"; }

  void write(const parallel::NamedTensors& tensors) {
    const std::map<at::ScalarType, std::string> names = {
        {at::kFloat, "F32"},
        {at::kHalf, "F16"},
        {at::kBFloat16, "BF16"},
        {at::kDouble, "F64"},
        {at::kLong, "I64"}};
    std::vector<record::TensorView> views;
    for (const auto& [name, tensor] : tensors) {
      views.push_back(
          {name,
           names.at(tensor.scalar_type()),
           tensor.sizes().vec(),
           {static_cast<const std::byte*>(tensor.data_ptr()),
            static_cast<size_t>(tensor.nbytes())}});
    }
    ASSERT_TRUE(record::write_safetensors(os::real_files(), path(), views, {}));
  }
  std::string refusal(const parallel::NamedTensors& model) {
    try {
      load_weights(path(), model);
    } catch (const TrainError& failure) {
      EXPECT_EQ(failure.exit_code(), kBadInput);
      return failure.what();
    }
    return "loaded";
  }
  std::filesystem::path folder_;
};

bool has(const std::vector<std::string>& lines, const std::string& line) {
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

TEST_F(WeightsFile, TellsWhatWasLoadedKeptMissingAndSkipped) {
  const auto body = at::randn({2, 3});
  write(
      {{"blocks.0.w", body},
       {"blocks.1.w", body + 1},
       {"head.weight", at::ones({1000, 3})},
       {"fc_norm.weight", at::ones({3})},
       {"lockstep.optim.x", at::ones({3})}});
  const parallel::NamedTensors model = {
      {"blocks.0.w", at::zeros({2, 3})},
      {"blocks.1.w", at::zeros({2, 3})},
      {"norm.weight", at::full({3}, 7.)},
      {"head.weight", at::full({10, 3}, 5.)},
      {"head.bias", at::full({10}, 5.)}};
  const auto report = load_weights(path(), model);
  EXPECT_TRUE(at::equal(model[0].second, body));
  EXPECT_TRUE(at::equal(model[1].second, body + 1));
  EXPECT_EQ(model[2].second.sum().item<float>(), 21);
  EXPECT_EQ(model[3].second.mean().item<float>(), 5);
  EXPECT_EQ(report.loaded.size(), 2u);
  EXPECT_TRUE(has(report.missing, "norm.weight [3]"));
  EXPECT_TRUE(has(report.kept, "head.weight [10, 3]: the file has [1000, 3]"));
  EXPECT_TRUE(has(report.kept, "head.bias [10]: not in the file"));
  EXPECT_EQ(report.skipped, std::vector<std::string>{"fc_norm.weight [3]"});
  const std::string text = report.to_string();
  EXPECT_NE(
      text.find(
          "2 tensors loaded, 0 adapted, 2 kept as initialised, 1 missing, 1 "
          "skipped"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("blocks.*.w [2, 3] (x2)"), std::string::npos) << text;
}

TEST_F(WeightsFile, TakesOtherFloatingTypes) {
  const auto value = at::randn({4, 4});
  for (const auto type : {at::kBFloat16, at::kHalf, at::kDouble}) {
    write({{"w", value.to(type)}});
    const parallel::NamedTensors model = {{"w", at::zeros({4, 4})}};
    const auto report = load_weights(path(), model);
    EXPECT_TRUE(at::equal(model[0].second, value.to(type).to(at::kFloat)));
    ASSERT_EQ(report.adapted.size(), 1u);
    EXPECT_NE(report.adapted[0].find(": from "), std::string::npos);
  }
}

TEST_F(WeightsFile, InterpolatesPositions) {
  const auto positions = at::randn({1, 1 + 49, 8});
  write({{"pos_embed", positions}});
  const parallel::NamedTensors model = {{"pos_embed", at::zeros({1, 65, 8})}};
  const auto report = load_weights(path(), model);
  const auto& got = model[0].second;
  EXPECT_TRUE(at::equal(got.slice(1, 0, 1), positions.slice(1, 0, 1)));
  EXPECT_TRUE(at::equal(got, resample_positions(positions, 1, 8)));
  EXPECT_EQ(
      report.adapted.at(0),
      "pos_embed [1, 50, 8] -> [1, 65, 8]: interpolated from 7x7 to 8x8 "
      "patches");
  // A constant stays one, and going nowhere changes nothing.
  const auto flat = resample_positions(at::full({1, 10, 2}, 3.), 1, 5);
  EXPECT_TRUE(at::allclose(flat, at::full({1, 26, 2}, 3.)));
  EXPECT_TRUE(at::allclose(resample_positions(positions, 1, 7), positions));
}

TEST_F(WeightsFile, SumsColoursForGreyImages) {
  const auto kernel = at::randn({5, 3, 4, 4});
  write({{"patch_embed.proj.weight", kernel}});
  const parallel::NamedTensors model = {
      {"patch_embed.proj.weight", at::zeros({5, 1, 4, 4})}};
  EXPECT_EQ(load_weights(path(), model).adapted.size(), 1u);
  EXPECT_TRUE(at::allclose(model[0].second, kernel.sum(1, true)));
}

TEST_F(WeightsFile, NamesWhatCannotBeMeant) {
  write({{"a", at::ones({2, 3})}, {"pos_embed", at::ones({1, 12, 4})}});
  const auto shape = refusal({{"a", at::zeros({3, 2})}});
  EXPECT_NE(
      shape.find("tensor 'a' is [2, 3], but the model has [3, 2]"),
      std::string::npos)
      << shape;
  EXPECT_NE(shape.find(path().string()), std::string::npos);
  // 11 patches are no square, and another width is another model.
  EXPECT_NE(
      refusal({{"pos_embed", at::zeros({1, 5, 4})}}).find("'pos_embed'"),
      std::string::npos);
  EXPECT_NE(
      refusal({{"pos_embed", at::zeros({1, 12, 8})}}).find("[1, 12, 8]"),
      std::string::npos);
  EXPECT_NE(
      refusal({{"other", at::zeros({3, 2})}}).find("none of its 2"),
      std::string::npos);
  // A head of other classes is replaced, one of another width is a mistake.
  write({{"a", at::ones({2})}, {"head.weight", at::ones({10, 8})}});
  EXPECT_NE(
      refusal({{"a", at::zeros({2})}, {"head.weight", at::zeros({10, 4})}})
          .find("'head.weight' is [10, 8], but the model has [10, 4]"),
      std::string::npos);
  write({{"a", at::ones({2, 3}, at::kLong)}});
  const auto type = refusal({{"a", at::zeros({2, 3})}});
  EXPECT_NE(type.find("tensor 'a' [2, 3] has type I64"), std::string::npos)
      << type;
  write({{"a", at::full({2, 3}, NAN)}});
  EXPECT_NE(
      refusal({{"a", at::zeros({2, 3})}}).find("'a' [2, 3] has values"),
      std::string::npos);
}

}  // namespace
}  // namespace lockstep::train
