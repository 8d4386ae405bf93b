// What a far end is sent, and what it reads: messages, ignore files, programs.

#include <algorithm>
#include <string>

#include "lockstep/reach/ignore.h"
#include "lockstep/reach/loader.h"
#include "lockstep/reach/message.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/script.h"

namespace {

using namespace lockstep;

void run(std::string_view input) {
  const os::Deadline never = os::Deadline::never();
  fuzz::Script requests(input);
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
  fuzz::Script answers(input);
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
