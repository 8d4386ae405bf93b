#include "lockstep/parallel/ddp.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <stdexcept>

#include "lockstep/base/check.h"

namespace lockstep::parallel {
namespace {

// A gradient starts on a cache line of its own.
constexpr size_t kAlignment = 64;

size_t padded_bytes(const at::Tensor& tensor) {
  const size_t bytes = tensor.numel() * tensor.element_size();
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool goes_through_host(
    const at::Tensor& tensor,
    const collective::Communicator& group) {
  return !tensor.is_cpu() && group.size() > 1 && !group.takes_device_memory();
}

struct Bucket {
  collective::Buffer memory;
  at::Tensor flat;
  at::Tensor staging;  // on the host, when gradients lie on a GPU without NCCL
  std::vector<size_t> members;
  size_t missing = 0;
  collective::Work work;
  bool launched = false;
};

}  // namespace

struct Ddp::State {
  collective::Communicator* group = nullptr;
  DdpOptions options;
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<std::shared_ptr<void>> accumulators;  // keep the hooks alive

  std::vector<Bucket> buckets;
  std::vector<size_t> bucket_of;
  std::vector<char> ready;
  std::vector<size_t> arrival;  // order of the first full backward
  size_t next_bucket = 0;
  bool held = false;
  bool open = false;
  bool rebuilt = false;
  collective::Timing timing;
  int64_t reduced_elements = 0;

  at::Tensor make_shared_tensor(
      collective::Buffer& memory,
      int64_t count,
      at::TensorOptions options);
  void make_buckets(const std::vector<size_t>& order);
  void on_gradient(size_t index);
  void mark_ready(size_t index);
  void launch_full_buckets();
  void rebuild_in_arrival_order();
};

at::Tensor Ddp::State::make_shared_tensor(
    collective::Buffer& memory,
    int64_t count,
    at::TensorOptions options) {
  memory =
      group->allocate(static_cast<size_t>(count) * options.dtype().itemsize());
  return at::from_blob(memory.data(), {count}, [memory](void*) {}, options);
}

void Ddp::State::make_buckets(const std::vector<size_t>& order) {
  buckets.clear();
  bucket_of.assign(parameters.size(), 0);
  gradients.resize(parameters.size());
  size_t limit = options.first_bucket_bytes;
  size_t bytes = 0;
  at::ScalarType type = at::kFloat;
  for (size_t index : order) {
    const auto& parameter = parameters[index];
    const size_t size = padded_bytes(parameter);
    const bool other_type = !buckets.empty() && parameter.scalar_type() != type;
    if (buckets.empty() || other_type || bytes + size > limit) {
      if (!buckets.empty()) {
        limit = options.bucket_bytes;
      }
      buckets.emplace_back();
      bytes = 0;
      type = parameter.scalar_type();
    }
    buckets.back().members.push_back(index);
    bucket_of[index] = buckets.size() - 1;
    bytes += size;
  }
  for (auto& bucket : buckets) {
    size_t total = 0;
    for (size_t index : bucket.members) {
      total += padded_bytes(parameters[index]);
    }
    const auto& first = parameters[bucket.members.front()];
    const auto element = static_cast<size_t>(first.element_size());
    const auto count = static_cast<int64_t>(total / element);
    const auto options = first.options().requires_grad(false);
    if (first.is_cpu() && !group->takes_device_memory()) {
      bucket.flat = make_shared_tensor(bucket.memory, count, options);
    } else {
      bucket.flat = at::zeros({count}, options);
      if (goes_through_host(first, *group)) {
        bucket.staging =
            make_shared_tensor(bucket.memory, count, options.device(at::kCPU));
      }
    }
    size_t offset = 0;
    for (size_t index : bucket.members) {
      auto& parameter = parameters[index];
      gradients[index] = bucket.flat.as_strided(
          parameter.sizes(),
          parameter.strides(),
          static_cast<int64_t>(offset / element));
      parameter.mutable_grad() = gradients[index];
      offset += padded_bytes(parameter);
    }
  }
}

void Ddp::State::on_gradient(size_t index) {
  if (!open || held || ready[index]) {
    return;
  }
  // A tensor that autograd put in place of the view would be reduced nowhere.
  LOCKSTEP_CHECK(
      parameters[index].grad().data_ptr() == gradients[index].data_ptr(),
      "gradient left its bucket");
  if (!rebuilt) {
    arrival.push_back(index);
  }
  mark_ready(index);
  launch_full_buckets();
}

void Ddp::State::mark_ready(size_t index) {
  ready[index] = 1;
  --buckets[bucket_of[index]].missing;
}

// Strictly in index order: every rank launches the same sequence.
void Ddp::State::launch_full_buckets() {
  while (next_bucket < buckets.size() && buckets[next_bucket].missing == 0) {
    auto& bucket = buckets[next_bucket++];
    if (bucket.staging.defined()) {
      bucket.staging.copy_(bucket.flat);
    }
    const auto& reduced =
        bucket.staging.defined() ? bucket.staging : bucket.flat;
    bucket.work = group->all_reduce_async(
        reduced.data_ptr(),
        static_cast<size_t>(reduced.numel()),
        data_type(reduced),
        collective::ReduceOp::kSum);
    bucket.launched = true;
    for (size_t index : bucket.members) {
      reduced_elements += parameters[index].numel();
    }
  }
  group->progress();
}

// Backward's real order is known after one step; rank 0's is taken by all.
void Ddp::State::rebuild_in_arrival_order() {
  rebuilt = true;
  std::vector<char> seen(parameters.size());
  for (size_t index : arrival) {
    seen[index] = 1;
  }
  for (size_t i = parameters.size(); i-- > 0;) {
    if (!seen[i]) {
      arrival.push_back(i);
    }
  }
  std::vector<int64_t> order(arrival.begin(), arrival.end());
  group->broadcast(order.data(), order.size(), collective::DataType::kInt64, 0);
  make_buckets(std::vector<size_t>(order.begin(), order.end()));
}

Ddp::Ddp(
    NamedTensors parameters,
    collective::Communicator& group,
    const DdpOptions& options)
    : state_(std::make_shared<State>()) {
  state_->group = &group;
  state_->options = options;
  for (auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad()) {
      continue;
    }
    state_->names.push_back(name);
    state_->parameters.push_back(parameter);
  }
  if (state_->parameters.empty()) {
    throw std::invalid_argument("ddp: the model has no trainable parameter");
  }
  std::vector<size_t> order;
  for (size_t i = state_->parameters.size(); i-- > 0;) {
    order.push_back(i);
  }
  state_->ready.resize(state_->parameters.size());
  state_->make_buckets(order);
  for (size_t i = 0; i < state_->parameters.size(); ++i) {
    auto accumulator =
        torch::autograd::impl::grad_accumulator(state_->parameters[i]);
    accumulator->add_post_hook(
        std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [weak = std::weak_ptr<State>(state_), i](
                const torch::autograd::variable_list& outputs,
                const torch::autograd::variable_list&) {
              if (auto state = weak.lock()) {
                state->on_gradient(i);
              }
              return outputs;
            }));
    // shared_ptr in LibTorch 2.11, intrusive_ptr in 2.13: held by type erasure.
    using Accumulator = decltype(accumulator);
    state_->accumulators.push_back(
        std::make_shared<Accumulator>(std::move(accumulator)));
  }
}

Ddp::~Ddp() = default;

void Ddp::begin() {
  State& state = *state_;
  if (!state.rebuilt && !state.arrival.empty()) {
    state.rebuild_in_arrival_order();
  }
  for (auto& bucket : state.buckets) {
    bucket.flat.zero_();
    bucket.missing = bucket.members.size();
    bucket.launched = false;
  }
  std::fill(state.ready.begin(), state.ready.end(), 0);
  state.next_bucket = 0;
  state.held = false;
  state.open = true;
  state.timing = {};
}

void Ddp::hold() {
  state_->held = true;
}

void Ddp::release() {
  state_->held = false;
}

collective::Timing Ddp::finish() {
  State& state = *state_;
  LOCKSTEP_CHECK(state.open, "finish() without begin()");
  // A parameter that backward did not reach has a gradient of zero.
  for (size_t i = 0; i < state.parameters.size(); ++i) {
    if (!state.ready[i]) {
      state.mark_ready(i);
    }
  }
  state.launch_full_buckets();
  for (auto& bucket : state.buckets) {
    const auto timing = bucket.work.wait();
    state.timing.wait += timing.wait;
    state.timing.busy += timing.busy;
    bucket.work = {};
    if (bucket.staging.defined()) {
      bucket.flat.copy_(bucket.staging);
    }
  }
  state.open = false;
  return state.timing;
}

const std::vector<std::string>& Ddp::names() const {
  return state_->names;
}

const std::vector<at::Tensor>& Ddp::parameters() const {
  return state_->parameters;
}

const std::vector<at::Tensor>& Ddp::gradients() const {
  return state_->gradients;
}

int64_t Ddp::reduced_elements() const {
  return state_->reduced_elements;
}

int64_t Ddp::num_buckets() const {
  return static_cast<int64_t>(state_->buckets.size());
}

void broadcast(const NamedTensors& tensors, collective::Communicator& group) {
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    auto dense =
        tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
    if (goes_through_host(dense, group)) {
      dense = dense.to(at::kCPU);
    }
    group.broadcast(
        dense.data_ptr(),
        static_cast<size_t>(dense.numel()),
        data_type(dense),
        0);
    if (!dense.is_same(tensor)) {
      tensor.copy_(dense);
    }
  }
}

collective::DataType data_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return collective::DataType::kFloat32;
    case at::kBFloat16:
      return collective::DataType::kBFloat16;
    case at::kDouble:
      return collective::DataType::kFloat64;
    case at::kInt:
      return collective::DataType::kInt32;
    case at::kLong:
      return collective::DataType::kInt64;
    case at::kByte:
    case at::kBool:
      return collective::DataType::kUint8;
    default:
      throw std::invalid_argument(
          std::string("no collective type for ") +
          c10::toString(tensor.scalar_type()));
  }
}

}  // namespace lockstep::parallel
