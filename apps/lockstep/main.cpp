// The control program: parse, dispatch, exit code.

#include "lockstep/commands/command.h"

int main(int argc, char** argv) {
  return lockstep::commands::run_command_line(argc, argv);
}
