#include "lockstep/parallel/fsdp.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <unordered_map>

#include "lockstep/base/check.h"
#include "lockstep/parallel/ddp.h"
#include "lockstep/parallel/unit.h"

namespace lockstep::parallel {
namespace {

constexpr size_t kNone = ~size_t{0};

// Memory for one gathered unit.
struct Slot {
  at::Tensor whole;
  at::Tensor cast;  // our part in the type that computes, when it is another
  size_t unit = kNone;
};

enum class Stage { kSharded, kComing, kGathered };

// What a unit is doing.
struct Course {
  Stage stage = Stage::kSharded;
  Slot* slot = nullptr;
  Exchange::Flight flight;
  at::Tensor gradients;  // of the whole, while they arrive
  bool reduced = false;  // in this step: later reductions add to its parts
};

}  // namespace

struct Fsdp::State {
  State(collective::Communicator& communicator, c10::Device device)
      : group(communicator), exchange(communicator, device) {}

  collective::Communicator& group;
  Exchange exchange;
  std::vector<Unit> units;  // the blocks, then the root when there is one
  size_t num_blocks = 0;
  std::vector<Course> courses;
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<std::shared_ptr<void>> accumulators;  // keep the hooks alive

  std::array<Slot, 2> slots;
  Slot root_slot;
  std::array<at::Tensor, 2> buffers;  // gradients of a block, by turns
  size_t next_buffer = 0;
  at::Tensor root_buffer;
  at::Tensor extra;  // a part that is added to what an earlier batch gave
  size_t reducing = kNone;
  Exchange::Flight reduction;
  bool direct_gradients = false;
  bool held = false;
  bool in_step = false;
  bool is_open = false;
  bool alone = false;  // nothing travels
  collective::Timing timing;
  int64_t reduced_elements = 0;

  bool has_root() const { return units.size() > num_blocks; }
  size_t root() const { return num_blocks; }
  bool is_root(size_t unit) const { return unit >= num_blocks; }

  void make_units(
      const NamedTensors& named,
      const std::vector<std::vector<at::Tensor>>& blocks,
      std::optional<at::ScalarType> compute);
  void make_memory();
  static void hook(const std::shared_ptr<State>& state);

  void spend(const collective::Timing& more) {
    timing.wait += more.wait;
    timing.busy += more.busy;
  }
  Slot& free_slot(size_t unit);
  void launch_gather(size_t unit);
  void ensure(size_t unit);
  void free(size_t unit);
  void free_all();
  void start_pass();

  void on_gradient(size_t unit, size_t i);
  void before_backward(size_t unit);
  void after_backward(size_t unit);
  void take_buffer(size_t unit);
  void reduce(size_t unit);
  void finish_reduction();
  // Units whose backward had no end that could be seen: the first block of a
  // model whose input needs no gradient.
  void reduce_pending(size_t except = kNone);
};

void Fsdp::State::make_units(
    const NamedTensors& named,
    const std::vector<std::vector<at::Tensor>>& blocks,
    std::optional<at::ScalarType> compute) {
  std::unordered_map<const void*, size_t> block_of;
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (const auto& tensor : blocks[i]) {
      if (!block_of.emplace(tensor.unsafeGetTensorImpl(), i).second) {
        throw std::invalid_argument(
            "fsdp: two blocks share a parameter, or one has it twice");
      }
    }
  }
  std::vector<std::vector<Unit::Parameter>> members(blocks.size() + 1);
  for (size_t i = 0; i < named.size(); ++i) {
    const auto found = block_of.find(named[i].second.unsafeGetTensorImpl());
    const bool in_block = found != block_of.end();
    members[in_block ? found->second : blocks.size()].push_back(
        {.name = named[i].first, .tensor = named[i].second, .index = i});
    if (in_block) {
      block_of.erase(found);
    }
  }
  if (!block_of.empty()) {
    throw std::invalid_argument(
        "fsdp: a block has a parameter that the model does not name");
  }
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].empty()) {
      if (i < blocks.size()) {
        throw std::invalid_argument(
            fmt::format("fsdp: block {} has no parameters", i));
      }
      continue;
    }
    const auto type = members[i].front().tensor.scalar_type();
    units.emplace_back(
        std::move(members[i]),
        group.rank(),
        group.size(),
        compute.value_or(type),
        exchange);
  }
  num_blocks = blocks.size();
  for (size_t i = 1; i < num_blocks; ++i) {
    if (units[i].type() != units[0].type()) {
      throw std::invalid_argument("fsdp: blocks of several types");
    }
  }
  courses.resize(units.size());
  std::vector<Unit::Parameter*> ordered(named.size());
  for (auto& unit : units) {
    for (auto& parameter : unit.parameters()) {
      ordered[parameter.index] = &parameter;
    }
  }
  for (const auto* parameter : ordered) {
    if (parameter->tensor.requires_grad()) {
      names.push_back(parameter->name);
      parameters.push_back(parameter->part);
      gradients.push_back(parameter->part_gradient);
    }
  }
  if (parameters.empty()) {
    throw std::invalid_argument("fsdp: the model has no trainable parameter");
  }
}

void Fsdp::State::make_memory() {
  size_t whole = 0;
  size_t part = 0;
  for (size_t i = 0; i < num_blocks; ++i) {
    whole = std::max(whole, units[i].pieces().whole);
    part = std::max(part, units[i].pieces().part);
  }
  const auto make_slot =
      [&](Slot& slot, const Unit& unit, size_t of_whole, size_t of_part) {
        slot.whole = exchange.allocate(
            static_cast<int64_t>(of_whole), unit.compute_type());
        if (unit.compute_type() != unit.type()) {
          slot.cast = exchange.allocate(
              static_cast<int64_t>(of_part), unit.compute_type());
        }
      };
  if (num_blocks > 0) {
    for (size_t i = 0; i < std::min(num_blocks, slots.size()); ++i) {
      make_slot(slots[i], units[0], whole, part);
      buffers[i] =
          exchange.allocate(static_cast<int64_t>(whole), units[0].type());
    }
  }
  if (has_root()) {
    const auto& unit = units[root()];
    make_slot(root_slot, unit, unit.pieces().whole, unit.pieces().part);
    root_buffer = exchange.allocate(
        static_cast<int64_t>(unit.pieces().whole), unit.type());
  }
}

void Fsdp::State::hook(const std::shared_ptr<State>& state) {
  state->accumulators.clear();
  for (size_t u = 0; u < state->units.size(); ++u) {
    auto& parameters = state->units[u].parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].tensor.requires_grad()) {
        continue;
      }
      auto accumulator =
          torch::autograd::impl::grad_accumulator(parameters[i].tensor);
      accumulator->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(
              [weak = std::weak_ptr<State>(state), u, i](
                  const torch::autograd::variable_list& outputs,
                  const torch::autograd::variable_list&) {
                if (auto held = weak.lock()) {
                  held->on_gradient(u, i);
                }
                return outputs;
              }));
      // shared_ptr in LibTorch 2.11, intrusive_ptr in 2.13.
      using Accumulator = decltype(accumulator);
      state->accumulators.push_back(
          std::make_shared<Accumulator>(std::move(accumulator)));
    }
  }
}

// A slot that nobody holds; else that of a unit that was fetched in vain.
Slot& Fsdp::State::free_slot(size_t unit) {
  if (is_root(unit)) {
    return root_slot;
  }
  for (auto& slot : slots) {
    if (slot.whole.defined() && slot.unit == kNone) {
      return slot;
    }
  }
  for (auto& slot : slots) {
    if (slot.unit != kNone && slot.unit != unit &&
        courses[slot.unit].stage == Stage::kComing) {
      free(slot.unit);
      return slot;
    }
  }
  free(slots[0].unit);
  return slots[0];
}

void Fsdp::State::launch_gather(size_t unit) {
  Course& course = courses[unit];
  if (course.stage != Stage::kSharded) {
    return;
  }
  at::NoGradGuard no_grad;
  Slot& slot = free_slot(unit);
  slot.unit = unit;
  course.slot = &slot;
  course.stage = Stage::kComing;
  if (alone) {
    return;
  }
  const auto& pieces = units[unit].pieces();
  at::Tensor part = units[unit].part();
  if (slot.cast.defined()) {
    part = slot.cast.narrow(0, 0, static_cast<int64_t>(pieces.part));
    part.copy_(units[unit].part());
  }
  course.flight = exchange.gather(pieces, part, slot.whole);
}

void Fsdp::State::ensure(size_t unit) {
  launch_gather(unit);
  Course& course = courses[unit];
  if (course.stage == Stage::kComing) {
    spend(course.flight.wait());
    course.stage = Stage::kGathered;
    units[unit].set_memory(course.slot->whole);
  }
}

void Fsdp::State::free(size_t unit) {
  Course& course = courses[unit];
  if (course.stage == Stage::kSharded) {
    return;
  }
  if (course.stage == Stage::kComing) {
    spend(course.flight.wait());
  }
  units[unit].set_memory({});
  course.slot->unit = kNone;
  course.slot = nullptr;
  course.stage = Stage::kSharded;
}

void Fsdp::State::free_all() {
  for (size_t unit = 0; unit < units.size(); ++unit) {
    free(unit);
  }
}

void Fsdp::State::start_pass() {
  if (has_root()) {
    launch_gather(root());
  }
  if (num_blocks > 0) {
    launch_gather(0);
  }
  if (has_root()) {
    ensure(root());
  }
}

void Fsdp::State::take_buffer(size_t unit) {
  Course& course = courses[unit];
  if (unit == reducing) {
    finish_reduction();  // of the batch before; a single block meets itself
  }
  if (course.gradients.defined()) {
    return;
  }
  if (is_root(unit)) {
    course.gradients = root_buffer;
    return;
  }
  // The other one may be in flight; with a single block it is this one.
  if (!buffers[next_buffer].defined()) {
    next_buffer = 0;
    finish_reduction();
  }
  course.gradients = buffers[next_buffer];
  next_buffer = 1 - next_buffer;
}

void Fsdp::State::on_gradient(size_t unit, size_t i) {
  if (!in_step) {
    return;
  }
  at::NoGradGuard no_grad;
  take_buffer(unit);
  auto& parameter = units[unit].parameters()[i];
  const auto target = units[unit].view(courses[unit].gradients, i);
  auto& gradient = parameter.tensor.mutable_grad();
  const bool there =
      gradient.defined() && gradient.data_ptr() == target.data_ptr();
  if (!there && parameter.arrived) {
    target.add_(gradient);
  } else if (!there) {
    target.copy_(gradient);
  }
  parameter.arrived = true;
  gradient = at::Tensor();
  group.progress();
}

void Fsdp::State::before_backward(size_t unit) {
  reduce_pending(unit);
  ensure(unit);
  if (unit > 0) {
    launch_gather(unit - 1);
  }
  if (direct_gradients) {
    take_buffer(unit);
    courses[unit].gradients.zero_();
    auto& members = units[unit].parameters();
    for (size_t i = 0; i < members.size(); ++i) {
      members[i].tensor.mutable_grad() =
          units[unit].view(courses[unit].gradients, i);
    }
  }
}

void Fsdp::State::after_backward(size_t unit) {
  if (!in_step) {
    return;
  }
  reduce(unit);
  // The next batch of an accumulation begins with it.
  if (unit > 0 || !held) {
    free(unit);
  }
}

void Fsdp::State::reduce(size_t unit) {
  at::NoGradGuard no_grad;
  Course& course = courses[unit];
  take_buffer(unit);
  auto& members = units[unit].parameters();
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i].arrived) {
      units[unit].view(course.gradients, i).zero_();
    }
    members[i].arrived = false;
    members[i].tensor.mutable_grad() = at::Tensor();
  }
  if (alone) {
    course.gradients = at::Tensor();
    return;
  }
  finish_reduction();
  const auto& pieces = units[unit].pieces();
  at::Tensor to = units[unit].gradient();
  if (course.reduced) {
    if (!extra.defined() || extra.numel() < to.numel()) {
      extra = exchange.allocate(to.numel(), to.scalar_type());
    }
    to = extra.narrow(0, 0, to.numel());
  }
  reduction = exchange.scatter(pieces, course.gradients, to);
  reducing = unit;
  reduced_elements += units[unit].num_elements();
}

void Fsdp::State::finish_reduction() {
  if (reducing == kNone) {
    return;
  }
  spend(reduction.wait());
  Course& course = courses[reducing];
  const auto& sum = units[reducing].gradient();
  if (course.reduced) {
    at::NoGradGuard no_grad;
    sum.add_(extra.narrow(0, 0, sum.numel()));
  }
  course.reduced = true;
  course.gradients = at::Tensor();
  reducing = kNone;
}

void Fsdp::State::reduce_pending(size_t except) {
  for (size_t unit = num_blocks; unit-- > 0;) {
    if (unit != except && unit != reducing &&
        courses[unit].gradients.defined()) {
      after_backward(unit);
    }
  }
}

Fsdp::Fsdp(
    const NamedTensors& parameters,
    const std::vector<std::vector<at::Tensor>>& blocks,
    collective::Communicator& group,
    const FsdpOptions& options) {
  if (parameters.empty()) {
    throw std::invalid_argument("fsdp: the model has no parameters");
  }
  state_ = std::make_shared<State>(group, parameters.front().second.device());
  state_->direct_gradients = options.direct_gradients;
  state_->make_units(parameters, blocks, options.compute);
  state_->make_memory();
  State::hook(state_);
}

Fsdp::~Fsdp() = default;

void Fsdp::begin() {
  State& state = *state_;
  state.finish_reduction();  // of a step that was given up
  state.free_all();
  state.timing = {};
  state.held = false;
  state.in_step = true;
  for (size_t unit = 0; unit < state.units.size(); ++unit) {
    auto& course = state.courses[unit];
    course.reduced = false;
    course.gradients = at::Tensor();
    for (auto& parameter : state.units[unit].parameters()) {
      parameter.arrived = false;
    }
  }
  state.next_buffer = 0;
  state.start_pass();
}

void Fsdp::hold() {
  state_->held = true;
}

void Fsdp::release() {
  state_->held = false;
}

at::Tensor
Fsdp::run_block(size_t index, const at::Tensor& input, const Block& block) {
  State& state = *state_;
  LOCKSTEP_CHECK_LT(index, state.num_blocks);
  state.ensure(index);
  if (index + 1 < state.num_blocks) {
    state.launch_gather(index + 1);
  }
  const std::weak_ptr<State> weak = state_;
  const bool training = state.in_step && at::GradMode::is_enabled();
  at::Tensor entered = input;
  if (training && input.requires_grad()) {
    // Its gradient is complete when the block's backward is.
    entered = input.view_as(input);
    entered.register_hook([weak, index](const at::Tensor&) {
      if (auto held = weak.lock()) {
        held->after_backward(index);
      }
    });
  }
  auto output = block(entered);
  const bool backward = training && output.requires_grad();
  if (backward) {
    output.register_hook([weak, index](const at::Tensor&) {
      if (auto held = weak.lock()) {
        held->before_backward(index);
      }
    });
  }
  if (!backward || index + 1 < state.num_blocks) {
    state.free(index);
  }
  if (state.is_open && index + 1 == state.num_blocks) {
    state.launch_gather(0);  // of the next batch
  }
  return output;
}

collective::Timing Fsdp::finish() {
  State& state = *state_;
  LOCKSTEP_CHECK(state.in_step, "finish() without begin()");
  state.held = false;
  state.reduce_pending();
  if (state.has_root()) {
    state.reduce(state.root());
  }
  state.finish_reduction();
  for (size_t unit = 0; unit < state.num_blocks; ++unit) {
    if (!state.courses[unit].reduced) {
      state.units[unit].gradient().zero_();
    }
  }
  state.free_all();
  state.in_step = false;
  return state.timing;
}

void Fsdp::rehearse(const std::function<void()>& pass) {
  State& state = *state_;
  const auto leave = [&] {
    state.free_all();
    state.in_step = false;
    state.alone = false;
  };
  state.alone = true;
  begin();
  try {
    pass();
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

void Fsdp::open() {
  state_->start_pass();
  state_->is_open = true;
}

// Also called while an error is on its way up: it must not throw another.
void Fsdp::close() {
  try {
    state_->free_all();
  } catch (const collective::CollectiveError&) {
    // Said by every other call on the group.
  }
  state_->is_open = false;
}

const std::vector<std::string>& Fsdp::names() const {
  return state_->names;
}

const std::vector<at::Tensor>& Fsdp::parameters() const {
  return state_->parameters;
}

const std::vector<at::Tensor>& Fsdp::gradients() const {
  return state_->gradients;
}

double Fsdp::total(double value) {
  state_->group.all_reduce(
      &value, 1, collective::DataType::kFloat64, collective::ReduceOp::kSum);
  return value;
}

NamedTensors Fsdp::state(NamedTensors state) const {
  std::unordered_map<std::string, at::Tensor> parts;
  for (const auto& unit : state_->units) {
    for (const auto& parameter : unit.parameters()) {
      parts[parameter.name] = parameter.part;
    }
  }
  for (auto& [name, tensor] : state) {
    if (const auto found = parts.find(name); found != parts.end()) {
      tensor = found->second;
    }
  }
  return state;
}

Placements Fsdp::placements() const {
  Placements result;
  for (const auto& unit : state_->units) {
    for (const auto& parameter : unit.parameters()) {
      result[parameter.name] = parameter.placement;
    }
  }
  return result;
}

void Fsdp::edit_whole(const std::function<void()>& edit) {
  State& state = *state_;
  at::NoGradGuard no_grad;
  Exchange exchange(state.group, state.units.front().part().device());
  std::vector<at::Tensor> wholes;
  for (auto& unit : state.units) {
    wholes.push_back(exchange.allocate(
        static_cast<int64_t>(unit.pieces().whole), unit.type()));
    exchange.gather(unit.pieces(), unit.part(), wholes.back()).wait();
    unit.show(wholes.back());
  }
  edit();
  for (size_t i = 0; i < wholes.size(); ++i) {
    broadcast({{"", wholes[i]}}, state.group);
    state.units[i].take_parts(wholes[i]);
    state.units[i].hide();
  }
  // A parameter that changed its type meanwhile has a new accumulator.
  State::hook(state_);
}

int64_t Fsdp::reduced_elements() const {
  return state_->reduced_elements;
}

int64_t Fsdp::peak_bytes() const {
  return state_->exchange.peak_bytes();
}

int64_t Fsdp::largest_block_elements() const {
  int64_t most = 0;
  for (size_t i = 0; i < state_->num_blocks; ++i) {
    most = std::max(most, state_->units[i].num_elements());
  }
  return most;
}

int64_t Fsdp::root_elements() const {
  return state_->has_root() ? state_->units[state_->root()].num_elements() : 0;
}

}  // namespace lockstep::parallel
