// The half of fmt that need not be compiled into every source of ours: two to
// three seconds each. Debian ships that half as a shared library only, and our
// programs travel to machines that do not have it. Sources that use LibTorch
// see the fmt of its wheel instead, whole (FMT_HEADER_ONLY).

#include <fmt/format-inl.h>

namespace fmt {
inline namespace v9 {
namespace detail {

// What fmt's headers only declare.
template locale_ref::locale_ref(const std::locale&);
template std::locale locale_ref::get<std::locale>() const;
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template char decimal_point_impl<char>(locale_ref);
template thousands_sep_result<wchar_t> thousands_sep_impl<wchar_t>(locale_ref);
template wchar_t decimal_point_impl<wchar_t>(locale_ref);

namespace dragonbox {
template decimal_fp<float> to_decimal<float>(float) noexcept;
template decimal_fp<double> to_decimal<double>(double) noexcept;
}  // namespace dragonbox

}  // namespace detail
}  // namespace v9
}  // namespace fmt
