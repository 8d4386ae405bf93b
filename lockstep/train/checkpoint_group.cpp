#include "lockstep/train/checkpoint_group.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/record/safetensors.h"
#include "lockstep/train/checkpoint_reader.h"
#include "lockstep/train/error.h"
#include "lockstep/train/group.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using collective::Communicator;

// The lowest rank for which `wrong` holds, or -1.
int first_rank(bool wrong, Communicator& group) {
  int64_t rank = wrong ? group.rank() : group.size();
  group.all_reduce(
      &rank, 1, collective::DataType::kInt64, collective::ReduceOp::kMin);
  return rank == group.size() ? -1 : static_cast<int>(rank);
}

// Runs `work` on every rank that has some; all throw when one failed.
template <class Work>
void together(Communicator& group, const Work& work) {
  std::string failure;
  int code = kFailed;
  try {
    work();
  } catch (const TrainError& error) {
    failure = error.what();
    code = error.exit_code();
  }
  const int rank = first_rank(!failure.empty(), group);
  if (!failure.empty()) {
    throw TrainError(code, failure);
  }
  if (rank >= 0) {
    throw TrainError(
        kFailed, fmt::format("rank {} failed; its log says why", rank));
  }
}

// The whole of a tensor of which every rank has a part.
at::Tensor collect(
    const at::Tensor& part,
    const parallel::Placement& placement,
    Communicator& group) {
  auto sizes = placement.sizes;
  const int64_t rows = sizes[static_cast<size_t>(placement.dim)];
  sizes[static_cast<size_t>(placement.dim)] =
      placement.rows_per_rank * group.size();
  const auto padded = at::empty(sizes, part.options().device(at::kCPU));
  padded
      .narrow(
          placement.dim,
          placement.rows_per_rank * group.rank(),
          part.size(placement.dim))
      .copy_(part);
  group.all_gather(
      padded.data_ptr(),
      static_cast<size_t>(padded.numel() / group.size()),
      parallel::data_type(padded));
  return padded.narrow(placement.dim, 0, rows);
}

CheckpointState collect_state(
    const CheckpointState& state,
    Communicator& group) {
  CheckpointState whole{
      state.recipe,
      state.config,
      {},
      {},
      {},
      state.run,
      state.classes,
      state.model};
  const auto add = [&](const parallel::NamedTensors& from,
                       parallel::NamedTensors& to) {
    for (const auto& [name, tensor] : from) {
      const auto placed = state.placements.find(name);
      if (placed == state.placements.end()) {
        to.emplace_back(name, tensor);
        continue;
      }
      auto collected = collect(tensor, placed->second, group);
      // Its bytes live until the file is written; nobody else needs them.
      to.emplace_back(
          name,
          group.rank() == 0 ? std::move(collected).contiguous() : at::Tensor());
    }
  };
  add(state.tensors, whole.tensors);
  add(state.extra, whole.extra);
  return whole;
}

void write_shard(
    const fs::path& folder,
    const CheckpointState& state,
    const Progress& progress,
    const Communicator& group) {
  std::vector<at::Tensor> dense;
  std::vector<record::TensorView> views;
  nlohmann::json info = nlohmann::json::object();
  for (const auto& [name, file_name, tensor] : in_file(state)) {
    const auto placed = state.placements.find(name);
    const bool in_parts = placed != state.placements.end();
    if (in_parts ? tensor.numel() == 0 : group.rank() != 0) {
      continue;  // nothing of it is ours
    }
    // PyTorch's merge loses what has no dimension.
    dense.push_back(tensor.detach().to(at::kCPU).contiguous().view(
        tensor.dim() == 0 ? at::IntArrayRef{1} : tensor.sizes()));
    const auto& kept = dense.back();
    views.push_back(
        {file_name,
         type_name(kept.scalar_type()),
         kept.sizes().vec(),
         {static_cast<const std::byte*>(kept.data_ptr()),
          static_cast<size_t>(kept.nbytes())}});
    info[file_name] = {
        {"saved_offsets",
         in_parts ? placed->second.offsets()
                  : std::vector<int64_t>(static_cast<size_t>(kept.dim()))}};
  }
  auto metadata = describe(state, progress);
  metadata["DCP_VERSION"] = "1.0";
  metadata["DCP_SHARDING_INFO"] = info.dump();
  metadata["lockstep.shards"] = std::to_string(group.size());
  const auto written = record::write_safetensors(
      os::real_files(), folder / shard_name(group.rank()), views, metadata);
  if (!written) {
    throw TrainError(
        kFailed, "writing the checkpoint: " + written.error().to_string());
  }
}

void save_shards(
    const fs::path& path,
    const CheckpointState& state,
    const Progress& progress,
    Communicator& group) {
  const fs::path folder = unfinished(path);
  const bool leader = group.rank() == 0;
  const auto fail = [&](const std::error_code& failure) {
    if (failure) {
      throw TrainError(
          kFailed,
          fmt::format(
              "writing the checkpoint {}: {}",
              path.string(),
              failure.message()));
    }
  };
  together(group, [&] {
    if (leader) {
      std::error_code failure;
      fs::remove_all(folder, failure);  // of a save that was killed
      fs::create_directory(folder, failure);
      fail(failure);
    }
  });
  try {
    together(group, [&] { write_shard(folder, state, progress, group); });
  } catch (const TrainError&) {
    if (leader) {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
    throw;
  }
  together(group, [&] {
    if (!leader) {
      return;
    }
    for (int rank = 0; rank < group.size(); ++rank) {
      if (!fs::exists(folder / shard_name(rank))) {
        std::error_code ignored;
        fs::remove_all(folder, ignored);
        throw TrainError(
            kFailed,
            fmt::format(
                "writing the checkpoint {}: the shard of rank {} is not there; "
                "the ranks do not share this folder: "
                "trainer.checkpoint_format=full",
                path.string(),
                rank));
      }
    }
    replace_checkpoint(folder, path);
  });
}

}  // namespace

bool choose_sharded(
    const std::string& format,
    const fs::path& folder,
    const CheckpointState& state,
    Communicator& group) {
  if (format == "full" || state.placements.empty()) {
    return false;
  }
  const fs::path probe =
      folder / broadcast_text(fmt::format(".seen-by-all-{}", getpid()), group);
  if (group.rank() == 0) {
    std::ofstream(probe) << "\n";
  }
  group.barrier();
  std::error_code ignored;
  const int blind = first_rank(!fs::exists(probe, ignored), group);
  if (group.rank() == 0) {
    fs::remove(probe, ignored);
  }
  if (blind >= 0 && format == "sharded") {
    throw TrainError(
        kBadInput,
        fmt::format(
            "trainer.checkpoint_format=sharded: rank {} does not see rank 0's "
            "folder {}; set trainer.checkpoint_dir to one that all ranks share "
            "or trainer.checkpoint_format=full",
            blind,
            folder.string()));
  }
  return blind < 0;
}

void save_together(
    const fs::path& path,
    const CheckpointState& state,
    const Progress& progress,
    bool sharded,
    Communicator& group) {
  if (sharded) {
    save_shards(path, state, progress, group);
    return;
  }
  if (state.placements.empty()) {
    if (group.rank() == 0) {
      save_checkpoint(path, state, progress);
    }
    return;
  }
  const auto whole = collect_state(state, group);
  together(group, [&] {
    if (group.rank() == 0) {
      save_checkpoint(path, whole, progress);
    }
  });
}

Progress restore_together(
    const fs::path& path,
    const CheckpointState& state,
    Communicator& group,
    bool weights_only) {
  at::NoGradGuard no_grad;
  const bool leader = group.rank() == 0;
  Progress progress;
  std::optional<CheckpointReader> reader;
  if (leader) {
    reader.emplace(path);
    progress = check_fits(*reader, state, weights_only);
  }
  CheckpointState shared{state.recipe, state.config, {}, {}, {}};
  for (const auto& [name, file_name, tensor] : in_file(state, weights_only)) {
    const auto placed = state.placements.find(name);
    if (placed == state.placements.end()) {
      if (leader) {
        copy_in(tensor, reader->read(file_name));
      }
      shared.tensors.emplace_back(name, tensor);
      continue;
    }
    const auto& placement = placed->second;
    const auto whole =
        leader ? reader->read(file_name).contiguous()
               : at::empty(placement.sizes, tensor.options().device(at::kCPU));
    // From a mapped file, which cannot be written: a copy travels.
    const auto sent = leader ? whole.clone() : whole;
    group.broadcast(
        sent.data_ptr(),
        static_cast<size_t>(sent.numel()),
        parallel::data_type(sent),
        0);
    tensor.copy_(sent.narrow(
        placement.dim, placement.offset, tensor.size(placement.dim)));
  }
  share_state(shared, progress, group);
  return progress;
}

}  // namespace lockstep::train
