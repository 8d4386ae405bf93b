#pragma once

// The texts of price_table.csv and type_table.csv, put into the program by the
// build.

#include <string_view>

namespace lockstep::cloud {

extern const std::string_view kPriceTable;
extern const std::string_view kTypeTable;

}  // namespace lockstep::cloud
