#include "lockstep/forest/fit.h"

#include <cstring>
#include <memory>

#include "lockstep/forest/gather.h"
#include "lockstep/forest/grower.h"
#include "lockstep/forest/histograms_fit.h"
#include "lockstep/forest/random.h"
#include "lockstep/forest/threads.h"
#include "lockstep/forest/tree_bytes.h"
#include "lockstep/forest/turns.h"

namespace lockstep::forest {
namespace {

// A thread's: rows drawn for its tree, and what grows it.
struct Worker {
  std::unique_ptr<Grower> grower;
  std::vector<uint8_t> counts;
  std::vector<uint32_t> rows;
};

Tree grow_tree(
    const BinnedTable& table,
    const FitOptions& options,
    size_t tree,
    Worker& worker) {
  const uint64_t key = tree_key(options.seed, tree);
  const Draws draws(key, options.bootstrap, options.sample);
  worker.counts.resize(table.num_rows);
  for (size_t i = 0; i < table.num_rows; ++i) {
    worker.counts[i] = static_cast<uint8_t>(draws.count(table.first_row + i));
  }
  worker.rows.resize(table.num_rows);
  size_t kept = 0;
  for (size_t i = 0; i < table.num_rows; ++i) {
    worker.rows[kept] = static_cast<uint32_t>(i);
    kept += worker.counts[i] != 0;
  }
  const Block block = {
      table.bins.data(), table.targets.data(), worker.counts.data()};
  return worker.grower->grow(
      block, std::span(worker.rows.data(), kept), key, 0);
}

// The trees of `turns`, each written by the rank that grew it: how long they
// are, then one after the other.
std::string join_bytes(
    std::span<const size_t> own,
    const std::vector<std::string>& written) {
  std::string bytes;
  for (const size_t tree : own) {
    const uint64_t length = written[tree].size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  }
  for (const size_t tree : own) {
    bytes.append(written[tree]);
  }
  return bytes;
}

void exchange_trees(
    const Turns& turns,
    std::vector<std::string> written,
    int threads,
    std::vector<Tree>& trees,
    collective::Communicator& group) {
  const auto ranks = static_cast<size_t>(group.size());
  const auto rank = static_cast<size_t>(group.rank());
  const auto parts = gather_bytes(join_bytes(turns.of(rank), written), group);
  written.clear();
  std::vector<std::pair<size_t, std::string_view>> others;
  for (size_t other = 0; other < ranks; ++other) {
    const auto grown = turns.of(other);
    std::string_view rest =
        parts[other].substr(grown.size() * sizeof(uint64_t));
    for (size_t i = 0; i < grown.size() && other != rank; ++i) {
      uint64_t length = 0;
      std::memcpy(
          &length, parts[other].data() + i * sizeof length, sizeof length);
      others.emplace_back(grown[i], rest.substr(0, length));
      rest.remove_prefix(length);
    }
  }
  for_pieces(others.size(), threads, [&](size_t piece, size_t) {
    auto [tree, bytes] = others[piece];
    trees[tree] = take_tree(bytes);
  });
}

// Each tree is grown of all rows by one rank.
std::vector<Tree> grow_from_rows(
    const BinnedTable& table,
    const Target& target,
    const FitOptions& options,
    collective::Communicator& group,
    const Progress& progress) {
  const auto trees = static_cast<size_t>(options.trees);
  const bool alone = group.size() == 1;
  std::vector<Tree> result(trees);
  std::vector<std::string> written(alone ? 0 : trees);
  std::vector<Worker> workers(
      static_cast<size_t>(std::max(1, options.threads)));
  const auto grow = [&](size_t tree, size_t thread) {
    Worker& worker = workers[thread];
    if (!worker.grower) {
      worker.grower = Grower::make(target, options, table.num_features);
    }
    result[tree] = grow_tree(table, options, tree, worker);
    if (!alone) {
      put_tree(result[tree], written[tree]);
    }
    if (progress) {
      progress(1);
    }
  };
  if (alone) {
    for_pieces(trees, options.threads, grow);
    return result;
  }
  const Turns turns = grow_in_turns(trees, options.threads, group, grow);
  exchange_trees(turns, std::move(written), options.threads, result, group);
  return result;
}

}  // namespace

BinnedTable gather_table(
    const BinnedTable& table,
    collective::Communicator& group) {
  std::string bytes(
      reinterpret_cast<const char*>(table.targets.data()),
      table.targets.size() * sizeof(int32_t));
  bytes.append(
      reinterpret_cast<const char*>(table.bins.data()), table.bins.size());
  BinnedTable whole;
  whole.num_features = table.num_features;
  whole.num_rows = table.total_rows;
  whole.total_rows = table.total_rows;
  whole.bins.reserve(whole.num_rows * whole.num_features);
  whole.targets.reserve(whole.num_rows);
  for (const auto& part : gather_bytes(bytes, group)) {
    const size_t rows = part.size() / (sizeof(int32_t) + table.num_features);
    const auto* targets = reinterpret_cast<const int32_t*>(part.data());
    const auto* bins =
        reinterpret_cast<const uint8_t*>(part.data()) + rows * sizeof(int32_t);
    whole.targets.insert(whole.targets.end(), targets, targets + rows);
    whole.bins.insert(whole.bins.end(), bins, bins + rows * table.num_features);
  }
  return whole;
}

Exchange choose_exchange(
    const BinnedTable& table,
    const FitOptions& options,
    const collective::Communicator& group) {
  if (group.size() == 1 || options.exchange != Exchange::kAuto) {
    return group.size() == 1 ? Exchange::kRows : options.exchange;
  }
  // Sent, received and kept, for a moment all at once.
  const uint64_t needed =
      3 * table.total_rows * (table.num_features + sizeof(int32_t));
  return needed <= options.memory ? Exchange::kRows : Exchange::kHistograms;
}

std::vector<Tree> grow_trees(
    const BinnedTable& table,
    const Target& target,
    const FitOptions& options,
    collective::Communicator& group,
    const Progress& progress) {
  if (choose_exchange(table, options, group) == Exchange::kHistograms) {
    return grow_from_histograms(table, target, options, group, progress);
  }
  if (group.size() == 1) {
    return grow_from_rows(table, target, options, group, progress);
  }
  return grow_from_rows(
      gather_table(table, group), target, options, group, progress);
}

}  // namespace lockstep::forest
