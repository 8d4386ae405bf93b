#include "lockstep/train/classifier.h"

#include <torch/types.h>

namespace lockstep::train {

Evaluation test_classifier(
    data::Loader& loader,
    const ClassifierTest& test,
    const Context& context) {
  torch::NoGradGuard no_grad;
  const auto classes = static_cast<int64_t>(test.classes.size());
  const auto on_device = at::TensorOptions().device(context.device);
  // Summed where the model is: no waiting for the device batch by batch.
  auto loss = at::zeros({}, on_device.dtype(at::kDouble));
  auto confusion = at::zeros({classes * classes}, on_device.dtype(at::kLong));
  int64_t passes = loader.batches();
  if (test.idle) {
    context.group->all_reduce(
        &passes, 1, collective::DataType::kInt64, collective::ReduceOp::kMax);
  }
  loader.start(0);
  for (; auto batch = loader.next(); --passes) {
    const auto labels = batch->labels.to(context.device, true);
    const auto logits = test.logits(batch->images.to(context.device, true));
    loss += at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
    confusion += at::bincount(
        labels * classes + logits.argmax(1), {}, classes * classes);
  }
  for (; test.idle && passes > 0; --passes) {
    test.idle();
  }
  double sum = loss.item<double>();
  const auto counts = confusion.cpu();
  context.group->all_reduce(
      &sum, 1, collective::DataType::kFloat64, collective::ReduceOp::kSum);
  context.group->all_reduce(
      counts.data_ptr(),
      static_cast<size_t>(counts.numel()),
      collective::DataType::kInt64,
      collective::ReduceOp::kSum);
  const auto right = counts.view({classes, classes}).diag().sum();
  const double samples = counts.sum().item<double>();
  const auto* begin = counts.data_ptr<int64_t>();
  return {
      {{"val_loss", sum / samples},
       {"val_accuracy", right.item<double>() / samples}},
      record::Confusion{test.classes, {begin, begin + counts.numel()}}};
}

}  // namespace lockstep::train
