#pragma once

// Numbers, times and other people's text as a page of Markdown shows them.
// Pure, private to record/.

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::record {

// One cell of a table: no character of it ends the cell or the row.
std::string cell(std::string_view text);
// A block of code that no line of the text can end.
std::string code_block(std::string_view text, std::string_view language);
// Whether seconds since 1970 are of years that people write.
bool is_time(double unix_seconds);
// "2026-11-15 08:30:12 UTC"; "unknown" for what is no time, and for 0.
std::string when(double unix_seconds);
std::string length(double seconds);  // "2m 05s"
std::string grouped(int64_t value);  // "1,234,567"
std::string number(double value);    // four digits, or grouped
std::string bytes(double count);     // "-" for none
std::string plural(int64_t count, std::string_view what);  // "3 ranks"

}  // namespace lockstep::record
