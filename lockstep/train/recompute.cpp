#include "lockstep/train/recompute.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/types.h>

#include <utility>

namespace lockstep::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct GeneratorState {
  at::Generator generator;
  at::Tensor state;
};

std::vector<GeneratorState> generator_states(c10::Device device) {
  std::vector<at::Generator> found = {at::detail::getDefaultCPUGenerator()};
  if (!device.is_cpu()) {
    found.push_back(at::globalContext().defaultGenerator(device));
  }
  std::vector<GeneratorState> states;
  for (auto& generator : found) {
    std::lock_guard lock(generator.mutex());
    states.push_back({generator, generator.get_state().clone()});
  }
  return states;
}

void set_states(const std::vector<GeneratorState>& states) {
  for (auto [generator, state] : states) {
    std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

// Sets the generators for a scope, and puts them back.
class GeneratorGuard {
 public:
  GeneratorGuard(
      const std::vector<GeneratorState>& states,
      c10::Device device) {
    if (!states.empty()) {
      before_ = generator_states(device);
      set_states(states);
    }
  }
  ~GeneratorGuard() { set_states(before_); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  std::vector<GeneratorState> before_;
};

struct Autocast {
  bool on = false;
  at::ScalarType type = at::kFloat;
};

Autocast autocast_of(c10::Device device) {
  return {
      at::autocast::is_autocast_enabled(device.type()),
      at::autocast::get_autocast_dtype(device.type())};
}

// Backward may run on another thread, where autocast was never set.
class AutocastScope {
 public:
  AutocastScope(c10::Device device, const Autocast& wanted)
      : device_(device), before_(autocast_of(device)) {
    set(wanted);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    set(before_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void set(const Autocast& autocast) {
    at::autocast::set_autocast_enabled(device_.type(), autocast.on);
    at::autocast::set_autocast_dtype(device_.type(), autocast.type);
  }
  c10::Device device_;
  Autocast before_;
};

// What backward needs to run the part again.
struct Again : torch::CustomClassHolder {
  Part part;
  std::vector<GeneratorState> generators;
  Autocast autocast;
};

class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const c10::intrusive_ptr<Again>& again) {
    context->save_for_backward({input});
    context->saved_data["again"] = c10::IValue::make_capsule(again);
    return again->part(input);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables()[0];
    const auto capsule = context->saved_data["again"].toCapsule();
    const auto& again = static_cast<const Again&>(*capsule);
    const auto input = saved.detach().requires_grad_(saved.requires_grad());
    at::Tensor output;
    {
      const at::AutoGradMode with_gradients(true);
      const GeneratorGuard generators(again.generators, saved.device());
      const AutocastScope autocast(saved.device(), again.autocast);
      output = again.part(input);
    }
    torch::autograd::backward({output}, {gradients[0]});
    return {input.grad(), Variable()};
  }
};

}  // namespace

Recompute recompute_from(const std::string& name) {
  return name == "attention" ? Recompute::kAttention
         : name == "block"   ? Recompute::kBlock
                             : Recompute::kNone;
}

std::string_view to_string(Recompute mode) {
  switch (mode) {
    case Recompute::kAttention:
      return "attention";
    case Recompute::kBlock:
      return "block";
    case Recompute::kNone:
      break;
  }
  return "none";
}

const std::vector<Recompute>& recompute_modes() {
  static const std::vector<Recompute> modes = {
      Recompute::kNone, Recompute::kAttention, Recompute::kBlock};
  return modes;
}

at::Tensor recomputed(const Part& part, const at::Tensor& input, bool random) {
  if (!at::GradMode::is_enabled() || !input.requires_grad()) {
    return part(input);
  }
  auto again = c10::make_intrusive<Again>();
  again->part = part;
  again->autocast = autocast_of(input.device());
  if (random) {
    again->generators = generator_states(input.device());
  }
  return Recomputed::apply(input, again);
}

}  // namespace lockstep::train
