#pragma once

// Memory against time (Chen et al., arXiv 1604.06174): a part of a model is
// run without keeping what its backward needs, and run again, with the same
// random numbers and the same precision, when backward comes to it. Gradients
// are the same bit for bit. Applied from outside: the part is any function of
// one tensor; its parameters get their gradients (and fire their hooks, so
// that data-parallel buckets leave) inside the nested backward.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace lockstep::train {

enum class Recompute { kNone, kAttention, kBlock };

// "none", "attention", "block"; "auto" is none until memory decides.
Recompute recompute_from(const std::string& name);
std::string_view to_string(Recompute mode);
// From the fastest to the one that needs least memory.
const std::vector<Recompute>& recompute_modes();

using Part = std::function<at::Tensor(const at::Tensor&)>;

// part(input), recomputed in backward. `input` must need a gradient when the
// part's parameters do, else nothing would reach them. `random`: the part draws
// from the default generators. Without gradients it is part(input).
at::Tensor
recomputed(const Part& part, const at::Tensor& input, bool random = false);

}  // namespace lockstep::train
