#pragma once

// Standard input, output and error of a program that was started without some
// of them. For the first line of a main, before any file is opened or any
// thread is there. Cannot fail: what cannot be opened stays closed.

namespace lockstep::os {

// A closed one would be the number of the next file that is opened, and what
// is told the user would go there. Standard output stays one that cannot be
// written, so that whoever was asked for a result still says so.
void hold_standard_streams();

}  // namespace lockstep::os
