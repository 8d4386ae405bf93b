// What a far end is sent, and what it reads: messages, ignore files, programs.

#include <algorithm>
#include <string>

#include "lockstep/reach/ignore.h"
#include "lockstep/reach/loader.h"
#include "lockstep/reach/message.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

// A peer that says what the input says.
class Script : public os::Connection {
 public:
  explicit Script(std::string_view text) : text_(text) {}
  Result<size_t> read_some(std::span<std::byte> buffer, os::Deadline) override {
    const size_t count = std::min(buffer.size(), text_.size());
    std::copy_n(
        reinterpret_cast<const std::byte*>(text_.data()), count, buffer.data());
    text_.remove_prefix(count);
    return count;
  }
  Result<void> write_all(std::span<const std::byte>, os::Deadline) override {
    return {};
  }
  void close() override {}
  std::string peer() const override { return "script"; }

 private:
  std::string_view text_;
};

void run(std::string_view input) {
  const os::Deadline never = os::Deadline::never();
  Script requests(input);
  for (int count = 0; count < 64; ++count) {
    const auto request = reach::read_request(requests, never);
    if (!request) {
      break;
    }
    fuzz::expect(request->arguments.is_object(), "arguments are an object");
    (void)reach::text_field(request->arguments, "id");
    (void)reach::number_field(request->arguments, "size");
    (void)reach::bytes_field(request->arguments, "data");
  }
  Script answers(input);
  (void)reach::read_answer(answers, never);
  // Stars make the matcher search, so long inputs would only be slow.
  const size_t half = std::min<size_t>(input.size() / 2, 24);
  reach::IgnoreRules rules;
  rules.add(input.substr(0, half));
  (void)rules.ignores(input.substr(half, 24), input.size() % 2 == 0);
  (void)reach::interpreter_of(input);
  (void)reach::parse_loader_list(std::string(input));
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "reach",
       .run = run,
       .dictionary =
           {"**/",
            "/**",
            "!",
            "[a-z]",
            "\\",
            "\177ELF\2\1\1",
            " => ",
            "not found",
            "\xa1",
            "\x64verb",
            "\x69"
            "arguments",
            "\xbf",
            "\x5f",
            std::string("\x05\0\0\0", 4)},
       .max_size = 1024});
}
