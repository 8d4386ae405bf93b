#include "lockstep/record/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "lockstep/record/logbook_plots.h"
#include "lockstep/record/logbook_text.h"
#include "lockstep/record/plot.h"
#include "lockstep/record/run_story.h"

namespace lockstep::record {
namespace {

namespace fs = std::filesystem;

struct Column {
  const ComparedRun* given = nullptr;
  RunStory story;
  double seconds = 0;
};

double mean_of(
    const RunSummary& summary,
    const std::function<double(const RunSummary::RankRow&)>& get) {
  double sum = 0;
  for (const auto& rank : summary.ranks) {
    sum += get(rank);
  }
  return summary.ranks.empty()
             ? 0
             : sum / static_cast<double>(summary.ranks.size());
}

double highest_of(
    const RunSummary& summary,
    const std::function<double(const RunSummary::RankRow&)>& get) {
  double most = 0;
  for (const auto& rank : summary.ranks) {
    most = std::max(most, get(rank));
  }
  return most;
}

std::string fact(const Column& column, const std::string& name) {
  const auto& facts = column.story.summary.facts;
  const auto found = facts.find(name);
  return found == facts.end() ? "-" : found->second;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) {
    return text;
  }
  std::string result = "\"";
  for (const char c : text) {
    result += c == '"' ? "\"\"" : std::string(1, c);
  }
  result += '"';
  return result;
}

class Comparison {
 public:
  Comparison(os::Path folder, const ComparisonInput& input)
      : folder_(std::move(folder)), input_(input) {}

  Result<void> read() {
    for (const auto& one : input_.runs) {
      Column column;
      column.given = &one;
      if (one.run) {
        LOCKSTEP_ASSIGN(column.story, read_story(*one.run));
        const auto& summary = column.story.summary;
        column.seconds =
            one.seconds > 0 ? one.seconds : summary.end - summary.start;
      }
      columns_.push_back(std::move(column));
    }
    return {};
  }

  std::string page() {
    add("# {}\n\n", cell(input_.name));
    const auto failed =
        std::count_if(columns_.begin(), columns_.end(), [](const auto& one) {
          return one.given->state != "done";
        });
    add("{} side by side{}.\n\n",
        plural(static_cast<int64_t>(columns_.size()), "run"),
        failed > 0 ? fmt::format(", of which {} did not end well", failed)
                   : "");
    if (!input_.command.empty()) {
      add("The command that repeats it:\n\n{}\n",
          code_block(input_.command, "sh"));
    }
    table();
    processors();
    curves();
    files();
    return std::move(text_);
  }
  std::string csv() const {
    std::string text;
    for (const auto& row : rows_) {
      text += csv_cell(row.name);
      for (const auto& value : row.values) {
        text += "," + csv_cell(value);
      }
      text += "\n";
    }
    return text;
  }
  const std::vector<Picture>& pictures() const { return pictures_; }

 private:
  struct Row {
    std::string name;
    std::vector<std::string> values;
  };

  template <class... Values>
  void add(fmt::format_string<Values...> form, Values&&... values) {
    text_ += fmt::format(form, std::forward<Values>(values)...);
  }

  // A row by what `get` says of each; left out where it says nothing of all.
  void row(
      const std::string& name,
      const std::function<std::string(const Column&)>& get) {
    Row made{name, {}};
    bool told = false;
    for (const auto& column : columns_) {
      made.values.push_back(column.given->run ? get(column) : "-");
      told = told || (made.values.back() != "-" && !made.values.back().empty());
    }
    if (told) {
      rows_.push_back(std::move(made));
    }
  }

  std::string relative(const os::Path& path) const {
    return fs::absolute(path)
        .lexically_normal()
        .lexically_relative(fs::absolute(folder_).lexically_normal())
        .string();
  }

  void metric_rows() {
    std::set<std::string> names;
    for (const auto& column : columns_) {
      for (const auto& [name, range] : column.story.summary.metrics) {
        if (name.starts_with("val_")) {
          names.insert(name);
        }
      }
    }
    for (const auto& name : names) {
      const bool less = less_is_better(name).value_or(false);
      row(fmt::format("best {}", name), [&](const Column& column) {
        const auto& metrics = column.story.summary.metrics;
        const auto found = metrics.find(name);
        if (found == metrics.end()) {
          return std::string("-");
        }
        const auto& range = found->second;
        return fmt::format(
            "{:.6g} (step {})",
            less ? range.lowest : range.highest,
            less ? range.lowest_step : range.highest_step);
      });
      row(fmt::format("last {}", name), [&](const Column& column) {
        const auto& metrics = column.story.summary.metrics;
        const auto found = metrics.find(name);
        return found == metrics.end()
                   ? std::string("-")
                   : fmt::format("{:.6g}", found->second.last);
      });
    }
  }

  std::string best_checkpoint(const Column& column) const {
    std::string path;
    for (const auto& one : column.story.summary.checkpoints) {
      if (one.reason == "best" || path.empty()) {
        path = one.path;
      }
    }
    if (path.empty()) {
      return "-";
    }
    // A run on other hosts tells its path there; the mirror has it here.
    const os::Path here =
        column.given->run->checkpoints() / os::Path(path).filename();
    std::error_code absent;
    return fs::exists(here, absent) ? relative(here) : path;
  }

  void table() {
    Row head{"", {}};
    for (const auto& column : columns_) {
      head.values.push_back(column.given->name);
    }
    rows_.push_back(head);
    rows_.push_back({"state", {}});
    for (const auto& column : columns_) {
      rows_.back().values.push_back(column.given->state);
    }
    row("ranks", [](const Column& column) {
      const auto& summary = column.story.summary;
      return fmt::format(
          "{} on {}",
          summary.world_size,
          plural(
              static_cast<int64_t>(std::max<size_t>(1, summary.nodes.size())),
              "node"));
    });
    for (const char* name :
         {"strategy", "model", "precision", "device", "recompute"}) {
      row(name, [name](const Column& column) { return fact(column, name); });
    }
    row("batch a rank",
        [](const Column& column) { return fact(column, "batch_size"); });
    row("memory of that batch",
        [](const Column& column) { return fact(column, "batch_memory"); });
    metric_rows();
    row("training time",
        [](const Column& column) { return length(column.seconds); });
    row("until the slowest rank was ready", [](const Column& column) {
      return length(column.story.summary.init_seconds);
    });
    row("steps", [](const Column& column) {
      return grouped(column.story.summary.steps);
    });
    row("epochs", [](const Column& column) {
      return grouped(column.story.summary.epochs);
    });
    row("samples a second", [](const Column& column) {
      return number(column.story.summary.samples_per_second);
    });
    row("peak memory of a rank's GPU", [](const Column& column) {
      return bytes(highest_of(column.story.summary, [](const auto& rank) {
        return rank.gpu_memory_bytes;
      }));
    });
    row("GPU use (mean)", [](const Column& column) {
      const double use = mean_of(column.story.summary, [](const auto& rank) {
        return rank.mean_gpu_use;
      });
      return use > 0 ? fmt::format("{:.0f}%", 100 * use) : "-";
    });
    row("peak memory of a rank", [](const Column& column) {
      return bytes(highest_of(column.story.summary, [](const auto& rank) {
        return rank.peak_resident_bytes;
      }));
    });
    row("cores in use a rank (mean)", [](const Column& column) {
      return fmt::format(
          "{:.2f}", mean_of(column.story.summary, [](const auto& rank) {
            return rank.mean_cpu;
          }));
    });
    row("cost", [](const Column& column) {
      return column.given->cost ? format_money(*column.given->cost) : "-";
    });
    row("TensorBoard", [this](const Column& column) {
      return relative(column.given->run->tensorboard());
    });
    row("best checkpoint",
        [this](const Column& column) { return best_checkpoint(column); });
    row("logbook", [this](const Column& column) {
      return relative(column.given->run->logbook());
    });
    for (size_t i = 0; i < rows_.size(); ++i) {
      add("| {} |", cell(rows_[i].name));
      for (const auto& value : rows_[i].values) {
        add(" {} |", cell(value));
      }
      add("\n");
      if (i == 0) {
        add("|---|");
        for (size_t c = 0; c < columns_.size(); ++c) {
          add("---|");
        }
        add("\n");
      }
    }
    add("\n");
  }

  // By rank, as nvidia-smi shows a machine; without GPUs memory and cores.
  void processors() {
    add("## Processors\n\n");
    const bool any_gpu =
        std::any_of(columns_.begin(), columns_.end(), [](const auto& column) {
          return highest_of(column.story.summary, [](const auto& rank) {
                   return rank.gpu_memory_bytes;
                 }) > 0;
        });
    if (any_gpu) {
      add("| run | node | rank | GPU memory (peak) | GPU use (mean) | resident "
          "memory (peak) | cores in use (mean) |\n"
          "|---|---|---:|---:|---:|---:|---:|\n");
    } else {
      add("No GPU was used.\n\n| run | node | rank | resident memory (peak) | "
          "cores in use (mean) |\n|---|---|---:|---:|---:|\n");
    }
    for (const auto& column : columns_) {
      for (const auto& rank : column.story.summary.ranks) {
        add("| {} | {} | {} |",
            cell(column.given->name),
            cell(rank.node),
            rank.rank);
        if (any_gpu) {
          add(" {} | {:.0f}% |",
              bytes(rank.gpu_memory_bytes),
              100 * rank.mean_gpu_use);
        }
        add(" {} | {:.2f} |\n", bytes(rank.peak_resident_bytes), rank.mean_cpu);
      }
    }
    add("\n");
  }

  void picture(
      const std::string& title,
      const std::string& file,
      const std::string& x_label,
      const std::string& y_label,
      const std::vector<Series>& lines,
      bool from_zero) {
    const bool any =
        std::any_of(lines.begin(), lines.end(), [](const auto& line) {
          return std::any_of(line.y.begin(), line.y.end(), [](double y) {
            return std::isfinite(y) && y != 0;
          });
        });
    if (!any) {
      return;
    }
    PlotOptions options;
    options.title = title;
    options.x_label = x_label;
    options.y_label = y_label;
    options.from_zero = from_zero;
    options.height = 300;
    pictures_.push_back({file, title, plot_svg(lines, options)});
    add("![{}](plots/{})\n\n", cell(title), file);
  }

  void curves() {
    add("## Curves\n\n");
    std::set<std::string> names;
    for (const auto& column : columns_) {
      for (const auto& line : column.story.metrics) {
        names.insert(line.name);
      }
    }
    for (const auto& name : names) {
      std::vector<Series> lines;
      for (const auto& column : columns_) {
        for (const auto& line : column.story.metrics) {
          if (line.name == name) {
            lines.push_back(line);
            lines.back().name = column.given->name;
          }
        }
      }
      std::string file = name;
      for (char& c : file) {
        c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      }
      picture(name, file + ".svg", "step", name, lines, false);
    }
    over_time("GPU use (mean over ranks)", "gpu.svg", "percent", [](auto& use) {
      return use.gpu_use * 100;
    });
    over_time(
        "GPU memory (mean over ranks)", "gpu_memory.svg", "GiB", [](auto& use) {
          return use.gpu_memory_bytes / (1 << 30);
        });
    over_time(
        "Resident memory (mean over ranks)",
        "memory.svg",
        "MiB",
        [](auto& use) { return use.resident_bytes / (1 << 20); });
    over_time(
        "Processor use (mean over ranks)",
        "cpu.svg",
        "cores in use",
        [](auto& use) { return use.cpu; });
  }

  // Seconds since each run's start; samples of its ranks in bins of a second.
  void over_time(
      const std::string& title,
      const std::string& file,
      const std::string& unit,
      const std::function<double(const wire::Resource&)>& get) {
    std::vector<Series> lines;
    for (const auto& column : columns_) {
      std::map<int64_t, std::pair<double, int>> bins;
      for (const auto& [number, rank] : column.story.ranks) {
        for (const auto& use : rank.uses) {
          const double since = use.time - column.story.summary.start;
          auto& [sum, count] = bins[static_cast<int64_t>(since / 2)];
          sum += get(use.resource);
          ++count;
        }
      }
      Series line;
      line.name = column.given->name;
      for (const auto& [bin, value] : bins) {
        line.x.push_back(2 * static_cast<double>(bin));
        line.y.push_back(value.first / value.second);
      }
      lines.push_back(std::move(line));
    }
    picture(title, file, "seconds since the start", unit, lines, true);
  }

  void files() {
    add("## Files\n\n| run | folder | TensorBoard |\n|---|---|---|\n");
    for (const auto& column : columns_) {
      if (!column.given->run) {
        continue;
      }
      const auto& run = *column.given->run;
      add("| {} | [{}]({}) | `tensorboard --logdir {}` |\n",
          cell(column.given->name),
          cell(run.id()),
          relative(run.path()),
          run.tensorboard().string());
    }
    add("\nThe table as a file: [comparison.csv](comparison.csv)\n");
  }

  os::Path folder_;
  const ComparisonInput& input_;
  std::vector<Column> columns_;
  std::vector<Row> rows_;
  std::vector<Picture> pictures_;
  std::string text_;
};

}  // namespace

Result<void> write_comparison(
    const os::Path& folder,
    const ComparisonInput& input) {
  Comparison comparison(folder, input);
  LOCKSTEP_TRY(comparison.read());
  const std::string page = comparison.page();
  auto& files = os::real_files();
  LOCKSTEP_TRY(files.make_directories(folder / "plots"));
  for (const auto& picture : comparison.pictures()) {
    LOCKSTEP_TRY(
        files.write_atomic(folder / "plots" / picture.file, picture.svg));
  }
  LOCKSTEP_TRY(files.write_atomic(folder / "comparison.csv", comparison.csv()));
  return files.write_atomic(folder / "logbook.md", page);
}

}  // namespace lockstep::record
