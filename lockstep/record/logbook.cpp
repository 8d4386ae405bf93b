#include "lockstep/record/logbook.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/record/logbook_files.h"
#include "lockstep/record/logbook_plots.h"
#include "lockstep/record/logbook_text.h"
#include "lockstep/record/run_story.h"

namespace lockstep::record {
namespace {

using Outcome = RunSummary::Outcome;

class Page {
 public:
  Page(
      const RunDirectory& run,
      const LogbookInput& input,
      const RunStory& story)
      : run_(run), input_(input), story_(story), summary_(story.summary) {}

  std::vector<Picture> pictures;

  std::string write() {
    add("# {}\n\n", cell(title()));
    add("{}\n\n", headline());
    if (!input_.ending.empty()) {
      add("The launcher says: {}\n\n", cell(input_.ending));
    }
    what_ran();
    if (summary_.outcome != Outcome::kEmpty) {
      cost();
      metrics();
      speed();
      resources();
      endings();
      text_ += checkpoints_section(run_, summary_);
    }
    text_ += samples_section(run_);
    remarks();
    text_ += files_section(run_, input_.outputs);
    return std::move(text_);
  }

 private:
  template <class... Values>
  void add(fmt::format_string<Values...> form, Values&&... values) {
    text_ += fmt::format(form, std::forward<Values>(values)...);
  }
  void row(std::string_view name, const std::string& value) {
    if (!value.empty()) {
      add("| {} | {} |\n", cell(name), value);
    }
  }
  double seconds() const { return summary_.end - summary_.start; }
  std::string title() const {
    return !input_.name.empty() ? input_.name : summary_.id;
  }

  void show(std::vector<Picture> made) {
    for (Picture& picture : made) {
      add("![{}](plots/{})\n\n", cell(picture.title), picture.file);
      pictures.push_back(std::move(picture));
    }
  }

  std::string headline() const {
    const std::string trained = fmt::format(
        "{}{} on {}",
        summary_.steps > 0 ? plural(summary_.steps, "step") + ", " : "",
        plural(summary_.world_size, "rank"),
        plural(
            static_cast<int64_t>(std::max<size_t>(summary_.nodes.size(), 1)),
            "node"));
    switch (summary_.outcome) {
      case Outcome::kEmpty:
        return "**Empty**: this run wrote no event. It did not start, or its "
               "program writes none.";
      case Outcome::kUnfinished:
        return fmt::format(
            "**Unfinished**: {} so far, {} after the start; not every rank "
            "wrote its end. The run goes on, or it was killed.",
            trained,
            length(seconds()));
      case Outcome::kFailed:
        return fmt::format(
            "**Failed** after {} ({}): {}",
            length(seconds()),
            trained,
            cell(summary_.failure));
      case Outcome::kStopped:
        return fmt::format(
            "**Stopped** after {} ({}).", length(seconds()), trained);
      case Outcome::kFinished:
        break;
    }
    return fmt::format("**Finished** in {}: {}.", length(seconds()), trained);
  }

  void what_ran() {
    add("## What ran\n\n| | |\n|---|---|\n");
    row("run", cell(summary_.id));
    row("program", cell(summary_.program));
    if (summary_.outcome != Outcome::kEmpty) {
      row("started", when(summary_.start));
      row("ended", when(summary_.end));
      std::string took = length(seconds());
      if (summary_.init_seconds > 0) {
        took += fmt::format(
            ", of which {} until the slowest rank was ready",
            length(summary_.init_seconds));
      }
      row("duration", took);
      row("ranks", fmt::format("{}", summary_.world_size));
      row("nodes", cell(fmt::format("{}", fmt::join(summary_.nodes, ", "))));
      if (summary_.starts > 1) {
        row("restarts", fmt::format("{}", summary_.starts - 1));
      }
      row("batch", batch());
      // A program without events has none of these.
      if (summary_.steps > 0) {
        row("steps", grouped(summary_.steps));
        row("epochs", grouped(summary_.epochs));
        row("samples", grouped(summary_.samples));
      }
    }
    for (const auto& [name, value] : summary_.facts) {
      if (name != "command") {
        row(name, cell(value));
      }
    }
    std::string command = input_.command;
    if (const auto fact = summary_.facts.find("command");
        command.empty() && fact != summary_.facts.end()) {
      command = fact->second;
    }
    if (!command.empty()) {
      add("\nThe command that repeats it:\n\n{}", code_block(command, "sh"));
    }
    add("\n");
  }

  // What iterations say: the mean share of a rank and of all together.
  std::string batch() const {
    double all = 0;
    double least = 0;
    double most = 0;
    for (const auto& rank : summary_.ranks) {
      if (rank.iterations > 0) {
        const double share = static_cast<double>(rank.samples) /
                             static_cast<double>(rank.iterations);
        least = all == 0 ? share : std::min(least, share);
        most = std::max(most, share);
        all += share;
      }
    }
    if (all <= 0) {
      return "";
    }
    const std::string each =
        most - least < 0.05 ? fmt::format("{:.6g}", std::round(most * 10) / 10)
                            : fmt::format(
                                  "{:.6g} to {:.6g}",
                                  std::round(least * 10) / 10,
                                  std::round(most * 10) / 10);
    return fmt::format(
        "{} samples a rank and step, {:.6g} a step over all ranks (mean)",
        each,
        std::round(all * 10) / 10);
  }

  void cost() {
    add("## Cost\n\n");
    const bool is_billed =
        summary_.cost && summary_.cost->dollars_per_hour <= 0;
    if (is_billed) {
      add("**{}** in all: the bill of the machines, which are given "
          "back.\n\n",
          format_money(Money::from_dollars(summary_.cost->dollars)));
    } else if (summary_.cost) {
      add("{} as metered by the coordinator, now at {} an hour.\n\n",
          format_money(Money::from_dollars(summary_.cost->dollars)),
          format_money(Money::from_dollars(summary_.cost->dollars_per_hour)));
    }
    if (!input_.price_per_hour) {
      if (!summary_.cost) {
        add("No price given. `--price USD` (dollars an hour and node) or a "
            "price in the user file "
            "`~/.config/lockstep/config.yaml` gives one.\n\n");
      }
      return;
    }
    const Money price = *input_.price_per_hour;
    if (!is_billed) {
      const double hours = seconds() / 3600;
      add("{} an hour x {:.6f} h ({:.1f} s) = **{}**",
          format_money(price),
          hours,
          seconds(),
          format_money(price * hours));
      add(" ({}all machines together)\n\n",
          input_.price_source.empty()
              ? ""
              : fmt::format("price from {}, ", cell(input_.price_source)));
    }
    if (summary_.samples_per_second > 0 && price.dollars() > 0) {
      const double per_dollar = 3600 / price.dollars();
      add("At the steady speed one dollar buys {} samples or {} "
          "iterations.\n\n",
          number(summary_.samples_per_second * per_dollar),
          number(per_dollar / summary_.iteration_seconds));
    }
  }

  void metrics() {
    if (summary_.metrics.empty()) {
      return;
    }
    add("## Metrics\n\nMeans over ranks; the better end is bold where the name "
        "tells which it is.\n\n| metric | last | lowest | at step | highest | "
        "at step |\n|---|---:|---:|---:|---:|---:|\n");
    for (const auto& [name, range] : summary_.metrics) {
      const auto less = less_is_better(name);
      const auto end = [](double value, bool bold) {
        return fmt::format(fmt::runtime(bold ? "**{:.6g}**" : "{:.6g}"), value);
      };
      add("| {} | {:.6g} | {} | {} | {} | {} |\n",
          cell(name),
          range.last,
          end(range.lowest, less.value_or(false)),
          range.lowest_step,
          end(range.highest, !less.value_or(true)),
          range.highest_step);
    }
    add("\n");
    show(metric_pictures(story_));
  }

  void speed() {
    if (summary_.iteration_seconds <= 0) {
      return;
    }
    add("## Speed\n\n{} samples a second over all ranks, {} an iteration "
        "({} iterations a second). The first iteration after a start is left "
        "out.\n\n",
        number(summary_.samples_per_second),
        length(summary_.iteration_seconds),
        number(1 / summary_.iteration_seconds));
    auto made = speed_pictures(story_);
    show(std::move(made));
    add("Seconds over all iterations, and their share:\n\n"
        "| rank | node | iterations | samples | data | compute | "
        "communication | wait | total |\n"
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for (const auto& rank : summary_.ranks) {
      const auto share = [&rank](double part) {
        return fmt::format(
            "{:.2f} ({:.1f}%)",
            part,
            rank.total > 0 ? 100 * part / rank.total : 0);
      };
      add("| {} | {} | {} | {} | {} | {} | {} | {} | {:.2f} |\n",
          rank.rank,
          cell(rank.node),
          grouped(rank.iterations),
          grouped(rank.samples),
          share(rank.data),
          share(rank.compute),
          share(rank.communication),
          share(rank.wait),
          rank.total);
    }
    add("\n");
  }

  void resources() {
    auto made = resource_pictures(story_);
    if (made.empty()) {
      return;
    }
    add("## Memory and processors\n\n| rank | highest resident memory | cores "
        "in use (mean) | highest GPU memory | GPU use (mean) |\n"
        "|---:|---:|---:|---:|---:|\n");
    for (const auto& rank : summary_.ranks) {
      const bool gpu = rank.gpu_memory_bytes > 0;
      add("| {} | {} | {:.2f} | {} | {} |\n",
          rank.rank,
          bytes(rank.peak_resident_bytes),
          rank.mean_cpu,
          bytes(rank.gpu_memory_bytes),
          gpu ? fmt::format("{:.0f}%", 100 * rank.mean_gpu_use) : "-");
    }
    add("\n");
    show(std::move(made));
  }

  // How each rank ended, when there is something to tell.
  void endings() {
    const bool all_well = std::all_of(
        summary_.ranks.begin(), summary_.ranks.end(), [](const auto& rank) {
          return rank.exit_code == 0 && rank.exit_reason.empty();
        });
    if (all_well) {
      return;
    }
    add("## How the ranks ended\n\n| rank | node | exit code | reason | log |\n"
        "|---:|---|---:|---|---|\n");
    for (const auto& rank : summary_.ranks) {
      add("| {} | {} | {} | {} | [ranks/{}.log](ranks/{}.log) |\n",
          rank.rank,
          cell(rank.node),
          rank.exit_code ? fmt::format("{}", *rank.exit_code) : "none written",
          cell(rank.exit_reason),
          rank.rank,
          rank.rank);
    }
    add("\n");
  }

  void remarks() {
    if (!summary_.remarks.empty()) {
      add("## Events of the cluster\n\n");
      for (const auto& remark : summary_.remarks) {
        add("- {}: {}\n", when(remark.time), cell(remark.text));
      }
      add("\n");
    }
    if (summary_.skipped_lines > 0 || !story_.notes.empty()) {
      add("## What could not be read\n\n");
      if (summary_.skipped_lines > 0) {
        add("- {} of the events\n", plural(summary_.skipped_lines, "line"));
      }
      for (const auto& note : story_.notes) {
        add("- {}\n", cell(note));
      }
      add("\n");
    }
  }

  const RunDirectory& run_;
  const LogbookInput& input_;
  const RunStory& story_;
  const RunSummary& summary_;
  std::string text_;
};

}  // namespace

Result<void> write_logbook(const RunDirectory& run, const LogbookInput& input) {
  auto story = read_story(run);
  if (!story) {
    return std::move(story.error()).with_context("making the logbook");
  }
  if (input.started > 0) {
    story->summary.start = input.started;
  }
  if (input.ended > 0) {
    story->summary.end = input.ended;
  }
  Page page(run, input, *story);
  const std::string text = page.write();
  auto& files = os::real_files();
  if (!page.pictures.empty()) {
    LOCKSTEP_TRY(files.make_directories(run.plots()));
  }
  // The page last: it never points at a picture that is not there.
  for (const Picture& picture : page.pictures) {
    LOCKSTEP_TRY(files.write_atomic(run.plots() / picture.file, picture.svg));
  }
  return files.write_atomic(run.logbook(), text);
}

}  // namespace lockstep::record
