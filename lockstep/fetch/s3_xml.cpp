#include "lockstep/fetch/s3_xml.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/fetch/http_date.h"

namespace lockstep::fetch {
namespace {

Error unexpected(const char* what) {
  return Error(
      ErrorCode::kCorrupt, fmt::format("the server's answer has no {}", what));
}

bool is_true(const std::string& text) {
  return text == "true";
}

}  // namespace

std::string url_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16)
                .ptr == text.data() + i + 3) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::string plain_etag(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text = text.substr(1, text.size() - 2);
  }
  return std::string(text);
}

Result<S3Page> read_list(const pugi::xml_document& document) {
  const pugi::xml_node root = document.child("ListBucketResult");
  if (!root) {
    return unexpected("ListBucketResult");
  }
  // Asked for, because keys may hold what XML cannot; a server may not do it.
  const bool encoded = xml_text(root, "EncodingType") == "url";
  S3Page page;
  for (const pugi::xml_node& node : root.children("Contents")) {
    S3Object object;
    // Not xml_text: blanks at the ends of a key are part of it.
    const std::string_view key = node.child("Key").child_value();
    object.key = encoded ? url_decode(key) : std::string(key);
    if (object.key.empty()) {
      return unexpected("Key");
    }
    LOCKSTEP_ASSIGN(object.size, xml_number(node, "Size"));
    object.etag = plain_etag(xml_text(node, "ETag"));
    object.modified =
        parse_iso_date(xml_text(node, "LastModified")).value_or(0);
    page.objects.push_back(std::move(object));
  }
  if (is_true(xml_text(root, "IsTruncated"))) {
    page.next = xml_text(root, "NextContinuationToken");
    if (page.next.empty()) {
      return unexpected("NextContinuationToken");
    }
  }
  return page;
}

Result<S3Parts> read_parts(const pugi::xml_document& document) {
  // Not every server calls it ListPartsResult.
  const pugi::xml_node root = document.document_element();
  if (!root.child("UploadId")) {
    return unexpected("UploadId");
  }
  S3Parts out;
  for (const pugi::xml_node& node : root.children("Part")) {
    LOCKSTEP_ASSIGN(const uint64_t number, xml_number(node, "PartNumber"));
    if (number < 1 || number > 10000) {
      return Error(
          ErrorCode::kCorrupt,
          fmt::format("the server lists a part {} of an upload", number));
    }
    S3Parts::Part part;
    LOCKSTEP_ASSIGN(part.size, xml_number(node, "Size"));
    part.etag = plain_etag(xml_text(node, "ETag"));
    out.parts[static_cast<int>(number)] = std::move(part);
  }
  if (is_true(xml_text(root, "IsTruncated"))) {
    out.next = xml_text(root, "NextPartNumberMarker");
    if (out.next.empty()) {
      return unexpected("NextPartNumberMarker");
    }
  }
  return out;
}

Result<S3Uploads> read_uploads(const pugi::xml_document& document) {
  const pugi::xml_node root = document.child("ListMultipartUploadsResult");
  if (!root) {
    return unexpected("ListMultipartUploadsResult");
  }
  const bool encoded = xml_text(root, "EncodingType") == "url";
  const auto decoded = [&](std::string_view text) {
    return encoded ? url_decode(text) : std::string(text);
  };
  S3Uploads out;
  for (const pugi::xml_node& node : root.children("Upload")) {
    S3Upload upload;
    upload.key = decoded(node.child("Key").child_value());
    upload.id = xml_text(node, "UploadId");
    upload.begun = parse_iso_date(xml_text(node, "Initiated")).value_or(0);
    if (upload.key.empty() || upload.id.empty()) {
      return unexpected("Key and UploadId of an upload");
    }
    out.uploads.push_back(std::move(upload));
  }
  if (is_true(xml_text(root, "IsTruncated"))) {
    out.next_key = decoded(root.child("NextKeyMarker").child_value());
    out.next_id = xml_text(root, "NextUploadIdMarker");
    if (out.next_key.empty()) {
      return unexpected("NextKeyMarker");
    }
  }
  return out;
}

Result<std::string> read_upload_id(const pugi::xml_document& document) {
  std::string id = xml_text(document, "InitiateMultipartUploadResult/UploadId");
  if (id.empty()) {
    return unexpected("UploadId");
  }
  return id;
}

std::string write_complete(const std::vector<std::string>& etags) {
  std::string out =
      "<CompleteMultipartUpload "
      "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (size_t i = 0; i < etags.size(); ++i) {
    out += fmt::format(
        "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>",
        i + 1,
        xml_escape('"' + etags[i] + '"'));
  }
  return out + "</CompleteMultipartUpload>";
}

}  // namespace lockstep::fetch
