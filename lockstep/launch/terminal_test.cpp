#include "lockstep/launch/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "lockstep/os/descriptor.h"

namespace lockstep::launch {
namespace {

std::string read_all(int descriptor) {
  std::string text;
  char block[4096];
  ssize_t size = 0;
  while ((size = ::read(descriptor, block, sizeof block)) > 0) {
    text.append(block, static_cast<size_t>(size));
  }
  return text;
}

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader = os::Descriptor(ends[0]);
    writer = os::Descriptor(ends[1]);
  }
  os::Descriptor reader, writer;
};

TEST(Terminal, WritesPlainLinesToAPipe) {
  Pipe pipe;
  {
    Terminal terminal(pipe.writer.get());
    EXPECT_FALSE(terminal.is_terminal());
    terminal.line("one");
    terminal.status("never shown");
    terminal.line("two");
  }
  pipe.writer.reset();
  EXPECT_EQ(read_all(pipe.reader.get()), "one\ntwo\n");
}

TEST(Terminal, TakesLinesFromManyThreadsWhole) {
  Pipe pipe;
  std::string text;
  std::thread reader([&] { text = read_all(pipe.reader.get()); });
  {
    Terminal terminal(pipe.writer.get());
    std::vector<std::thread> writers;
    for (int i = 0; i < 4; ++i) {
      writers.emplace_back([&terminal] {
        for (int j = 0; j < 100; ++j) {
          terminal.line("a line that stays whole");
        }
      });
    }
    for (auto& writer : writers) {
      writer.join();
    }
  }
  pipe.writer.reset();
  reader.join();
  std::string expected;
  for (int i = 0; i < 400; ++i) {
    expected += "a line that stays whole\n";
  }
  EXPECT_EQ(text, expected);
}

TEST(Terminal, HasNoRoomWhileNobodyReads) {
  Pipe pipe;
  Terminal terminal(pipe.writer.get());
  const std::string line(1 << 16, 'x');
  while (terminal.room() > 0) {
    terminal.line(line);
  }
  std::thread reader([&] { read_all(pipe.reader.get()); });
  EXPECT_TRUE(terminal.drain());
  EXPECT_GT(terminal.room(), 0U);
  pipe.writer.reset();
  reader.join();
}

TEST(Terminal, GivesUpOnAReaderThatIsGone) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  Terminal terminal(pipe.writer.get());
  pipe.reader.reset();
  terminal.line("nobody");
  EXPECT_TRUE(terminal.drain());
}

TEST(Terminal, RedrawsTheStatusOnATerminal) {
  int master = -1;
  int slave = -1;
  winsize size{.ws_row = 5, .ws_col = 12, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, &size), 0);
  const os::Descriptor screen(master);
  os::Descriptor side(slave);
  std::string seen;
  {
    Terminal terminal(side.get());
    EXPECT_TRUE(terminal.is_terminal());
    terminal.status("step 1 of many more");
    ASSERT_TRUE(terminal.drain());
    terminal.line("output");
    ASSERT_TRUE(terminal.drain());
    terminal.status("");
  }
  side.reset();
  seen = read_all(screen.get());
  // Cut to the width, erased before a line, drawn again below it, erased.
  EXPECT_EQ(seen, "step 1 of m\r\x1b[Koutput\r\nstep 1 of m\r\x1b[K");
}

TEST(Terminal, CutsTheStatusBetweenCharacters) {
  int master = -1;
  int slave = -1;
  winsize size{.ws_row = 5, .ws_col = 7, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, &size), 0);
  const os::Descriptor screen(master);
  os::Descriptor side(slave);
  {
    Terminal terminal(side.get());
    terminal.status("l\xc3\xb6ss_\xc3\xb1 0.5");
    ASSERT_TRUE(terminal.drain());
    terminal.status("");
  }
  side.reset();
  EXPECT_EQ(read_all(screen.get()), "l\xc3\xb6ss_\xc3\xb1\r\x1b[K");
}

}  // namespace
}  // namespace lockstep::launch
