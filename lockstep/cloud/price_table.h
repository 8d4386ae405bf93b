#pragma once

// The text of price_table.csv, put into the program by the build.

#include <string_view>

namespace lockstep::cloud {

extern const std::string_view kPriceTable;

}  // namespace lockstep::cloud
