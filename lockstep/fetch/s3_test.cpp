#include "lockstep/fetch/s3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/fetch/s3_xml.h"

namespace lockstep::fetch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HttpResponse answer(int status, std::string body = "") {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

// A client whose requests the test answers.
class S3Test : public ::testing::Test {
 protected:
  using Answer = FakeTransport::Answer;
  S3 make(Answer reply, S3Options options = {}) {
    transport_ = std::make_unique<FakeTransport>(std::move(reply));
    options.client.transport = transport_.get();
    options.client.clock = &clock_;
    options.client.random = [] { return 0.5; };
    options.client.credentials = fixed_credentials({"ID", Secret("s"), {}});
    return S3(std::move(options));
  }
  std::vector<std::string> urls() const {
    std::vector<std::string> out;
    for (const auto& asked : transport_->asked()) {
      out.push_back(asked.request.url);
    }
    return out;
  }
  os::FakeClock clock_;
  std::unique_ptr<FakeTransport> transport_;
};

TEST(S3Address, Parts) {
  const auto address = parse_s3_address("s3://my-bucket/a/b");
  ASSERT_TRUE(address);
  EXPECT_EQ(address->bucket, "my-bucket");
  EXPECT_EQ(address->key, "a/b");
  EXPECT_EQ(address->below("c").to_string(), "s3://my-bucket/a/b/c");
  EXPECT_EQ(parse_s3_address("s3://my-bucket")->key, "");
  EXPECT_EQ(parse_s3_address("s3://my-bucket/")->below("x").key, "x");
  for (const char* bad :
       {"my-bucket/a",
        "s3://",
        "s3:///a",
        "s3://Upper/a",
        "s3://a b/c",
        "s3://-ab/c",
        "s3://ab./c",
        "s3://my-bucket/../a",
        "s3://my-bucket/a/./b",
        "http://b/c"}) {
    EXPECT_FALSE(parse_s3_address(bad)) << bad;
  }
}

TEST_F(S3Test, VirtualHostsOnAwsPathsElsewhere) {
  const auto fine = [](const auto&) { return answer(200, "x"); };
  auto aws = make(fine);
  ASSERT_TRUE(aws.get({"my-bucket", "a b"}));
  ASSERT_TRUE(aws.get({"dots.in.it", "k"}));
  EXPECT_THAT(
      urls(),
      ElementsAre(
          "https://my-bucket.s3.us-east-1.amazonaws.com/a%20b",
          "https://s3.us-east-1.amazonaws.com/dots.in.it/k"));
  S3Options options;
  options.endpoint = "http://localhost:9000/";
  auto own = make(fine, options);
  ASSERT_TRUE(own.get({"my-bucket", "k"}));
  EXPECT_THAT(urls(), ElementsAre("http://localhost:9000/my-bucket/k"));
  options.addressing = S3Addressing::kVirtual;
  auto virtual_host = make(fine, options);
  ASSERT_TRUE(virtual_host.get({"my-bucket", "k"}));
  EXPECT_THAT(urls(), ElementsAre("http://my-bucket.localhost:9000/k"));
}

TEST_F(S3Test, ABucketElsewhereIsFollowedOnce) {
  const auto moved = [](const FakeTransport::Asked& asked) {
    if (asked.request.url.find("eu-west-1") != std::string::npos) {
      return answer(200, "there");
    }
    HttpResponse out = answer(
        301,
        "<Error><Code>PermanentRedirect</Code><Message>use the endpoint"
        "</Message></Error>");
    out.headers["x-amz-bucket-region"] = "eu-west-1";
    return out;
  };
  auto s3 = make(moved);
  EXPECT_EQ(*s3.get({"my-bucket", "k"}), "there");
  EXPECT_EQ(*s3.get({"my-bucket", "k"}), "there");
  // Learned: the second call goes there at once.
  EXPECT_EQ(urls().size(), 3U);
  EXPECT_THAT(urls().back(), HasSubstr("my-bucket.s3.eu-west-1.amazonaws.com"));

  auto lost = make([](const auto&) {
    HttpResponse out = answer(
        301,
        "<Error><Code>PermanentRedirect</Code><Message>m</Message></Error>");
    out.headers["x-amz-bucket-region"] = "eu-west-1";
    return out;
  });
  const auto none = lost.get({"my-bucket", "k"});
  ASSERT_FALSE(none);
  EXPECT_EQ(urls().size(), 2U);
  EXPECT_THAT(none.error().to_string(), HasSubstr("it is in eu-west-1"));
}

std::string page(int first, int count, const std::string& next) {
  std::string out =
      "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>";
  out += next.empty() ? "false" : "true";
  out += "</IsTruncated>";
  if (!next.empty()) {
    out += "<NextContinuationToken>" + next + "</NextContinuationToken>";
  }
  for (int i = first; i < first + count; ++i) {
    out += "<Contents><Key>k+%2B" + std::to_string(i) +
           "</Key><Size>7</Size><ETag>&quot;e&quot;</ETag>"
           "<LastModified>2026-11-15T10:00:00.000Z</LastModified></Contents>";
  }
  return out + "</ListBucketResult>";
}

TEST_F(S3Test, ListsPageByPage) {
  auto s3 = make([](const FakeTransport::Asked& asked) {
    const std::string& url = asked.request.url;
    return url.find("continuation-token=t%2F1") != std::string::npos
               ? answer(200, page(1000, 5, ""))
               : answer(200, page(0, 1000, "t/1"));
  });
  std::vector<S3Object> found;
  const auto listed =
      s3.list({"my-bucket", "k"}, [&](S3Object object) -> Result<void> {
        found.push_back(std::move(object));
        return {};
      });
  ASSERT_TRUE(listed) << listed.error().to_string();
  ASSERT_EQ(found.size(), 1005U);
  EXPECT_EQ(found.back().key, "k +1004");
  EXPECT_EQ(found.back().etag, "e");
  EXPECT_EQ(found.back().modified, 1794736800);
}

TEST_F(S3Test, AListThatNeverEnds) {
  auto s3 = make([](const auto&) { return answer(200, page(0, 1, "same")); });
  const auto listed = s3.list(
      {"my-bucket", ""}, [](const S3Object&) { return Result<void>{}; });
  ASSERT_FALSE(listed);
  EXPECT_EQ(listed.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(urls().size(), 2U);
}

TEST_F(S3Test, ContentIsChecked) {
  auto s3 = make([](const auto&) {
    HttpResponse out = answer(200, "data");
    out.headers["etag"] = "\"0123456789abcdef0123456789abcdef\"";
    return out;
  });
  const auto wrong = s3.get({"my-bucket", "k"});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(urls().size(), 2U);  // once more, in case
  auto encrypted = make([](const auto&) {
    HttpResponse out = answer(200, "data");
    out.headers["etag"] = "\"0123456789abcdef0123456789abcdef\"";
    out.headers["x-amz-server-side-encryption"] = "aws:kms";
    return out;
  });
  EXPECT_TRUE(encrypted.get({"my-bucket", "k"}));
  auto ours = make([](const auto&) {
    HttpResponse out = answer(200, "123456789");
    out.headers["x-amz-meta-lockstep-crc32c"] = "e3069283";
    return out;
  });
  EXPECT_TRUE(ours.get({"my-bucket", "k"}));
}

TEST_F(S3Test, AnonymousRequestsAreNotSigned) {
  S3Options options;
  options.anonymous = true;
  auto s3 = make([](const auto&) { return answer(200, "x"); }, options);
  ASSERT_TRUE(s3.get({"my-bucket", "k"}));
  const auto asked = transport_->asked();
  for (const auto& [name, value] : asked[0].request.headers) {
    EXPECT_NE(name, "Authorization");
  }
}

TEST_F(S3Test, AFileThatChangesWhileItIsStored) {
  std::string name =
      (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(name.data());
  const auto file = folder / "file";
  std::ofstream(file) << std::string(100, 'a');
  S3Options options;
  options.part_size = 40;
  options.endpoint = "http://h";
  bool aborted = false;
  auto s3 = make(
      [&](const FakeTransport::Asked& asked) {
        const std::string& url = asked.request.url;
        if (asked.request.method == "POST") {
          // After the file was read once, it becomes another one.
          std::ofstream(file) << std::string(100, 'b');
          return answer(
              200,
              "<InitiateMultipartUploadResult><UploadId>u</UploadId>"
              "</InitiateMultipartUploadResult>");
        }
        aborted = aborted || (asked.request.method == "DELETE" &&
                              url.find("uploadId=u") != std::string::npos);
        return answer(200);
      },
      options);
  const auto done = s3.upload(file, {"my-bucket", "k"});
  std::filesystem::remove_all(folder);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().to_string(), HasSubstr("changed while"));
  EXPECT_TRUE(aborted);
}

std::string upload_xml(
    const std::string& key,
    const std::string& id,
    const std::string& begun) {
  return "<Upload><Key>" + key + "</Key><UploadId>" + id +
         "</UploadId><Initiated>" + begun + "</Initiated></Upload>";
}

// A store with uploads of "k" that were begun at different times, and a client
// whose clock stands at 2026-11-15T10:00:00Z.
class StaleUploads : public S3Test {
 protected:
  void SetUp() override {
    std::string name =
        (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    std::ofstream(folder_ / "file") << std::string(100, 'a');
    clock_.advance(
        std::chrono::seconds(
            1794736800 - static_cast<int64_t>(clock_.unix_seconds())));
    options_.part_size = 40;
    options_.endpoint = "http://h";
    options_.state = folder_ / "state";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  HttpResponse reply(const FakeTransport::Asked& asked) {
    const std::string& url = asked.request.url;
    const std::string& method = asked.request.method;
    if (method == "GET" && url.find("uploads=") != std::string::npos) {
      return answer(
          200,
          "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>" +
              upload_xml("k", "old", "2026-11-14T09:00:00.000Z") +
              upload_xml("k", "today", "2026-11-15T08:00:00.000Z") +
              upload_xml("k", "now", "2026-11-15T09:59:00.000Z") +
              upload_xml("k2", "other", "2020-01-01T00:00:00.000Z") +
              "</ListMultipartUploadsResult>");
    }
    if (method == "DELETE") {
      ended_.push_back(url.substr(url.find("uploadId=") + 9));
      return answer(204);
    }
    if (method == "POST" && url.find("uploads=") != std::string::npos) {
      return begin_;
    }
    HttpResponse out = answer(
        200,
        method == "POST" ? "<CompleteMultipartUploadResult><ETag>e</ETag>"
                           "</CompleteMultipartUploadResult>"
                         : "");
    out.headers["etag"] = "e";
    return out;
  }
  Result<Transferred> store() {
    auto s3 = make(
        [this](const FakeTransport::Asked& asked) { return reply(asked); },
        options_);
    return s3.upload(folder_ / "file", {"my-bucket", "k"});
  }

  std::filesystem::path folder_;
  S3Options options_;
  HttpResponse begin_ = answer(
      200,
      "<InitiateMultipartUploadResult><UploadId>u</UploadId>"
      "</InitiateMultipartUploadResult>");
  std::vector<std::string> ended_;
};

TEST_F(StaleUploads, OnlyOldOnesOfTheKeyAreEnded) {
  const auto done = store();
  ASSERT_TRUE(done) << done.error().to_string();
  EXPECT_THAT(ended_, ElementsAre("old"));
  options_.stale = Duration(0);
  ended_.clear();
  ASSERT_TRUE(store());
  EXPECT_THAT(ended_, ElementsAre());
}

TEST_F(StaleUploads, OneThatWasBegunAndNeverNoted) {
  // The store was asked, and no answer came: there may be one by now.
  const HttpResponse fine = begin_;
  begin_ = answer(503);
  options_.client.attempts = 1;
  ASSERT_FALSE(store());
  begin_ = fine;
  ended_.clear();
  clock_.advance(std::chrono::minutes(3));
  ASSERT_TRUE(store());
  EXPECT_THAT(ended_, ElementsAre("old", "now"));
  // What is noted is forgotten with the upload.
  ended_.clear();
  ASSERT_TRUE(store());
  EXPECT_THAT(ended_, ElementsAre("old"));
}

TEST_F(StaleUploads, ARefusalLeavesNoNote) {
  begin_ = answer(403);
  ASSERT_FALSE(store());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "state" / "uploads"));
}

TEST_F(S3Test, ListsUploadsPageByPage) {
  auto s3 = make([](const FakeTransport::Asked& asked) {
    const std::string& url = asked.request.url;
    const bool second = url.find("key-marker=a%20b") != std::string::npos &&
                        url.find("upload-id-marker=1") != std::string::npos;
    return answer(
        200,
        "<ListMultipartUploadsResult><EncodingType>url</EncodingType>" +
            upload_xml(second ? "c" : "a+b", second ? "2" : "1", "?") +
            (second ? ""
                    : "<IsTruncated>true</IsTruncated><NextKeyMarker>a+b"
                      "</NextKeyMarker><NextUploadIdMarker>1"
                      "</NextUploadIdMarker>") +
            "</ListMultipartUploadsResult>");
  });
  std::vector<std::string> found;
  ASSERT_TRUE(s3.list_uploads({"my-bucket", ""}, [&](const S3Upload& one) {
    found.push_back(one.key + "=" + one.id);
    EXPECT_EQ(one.begun, 0);
    return Result<void>{};
  }));
  EXPECT_THAT(found, ElementsAre("a b=1", "c=2"));
  auto endless = make([](const auto&) {
    return answer(
        200,
        "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>"
        "<NextKeyMarker>k</NextKeyMarker></ListMultipartUploadsResult>");
  });
  const auto listed = endless.list_uploads(
      {"my-bucket", ""}, [](const S3Upload&) { return Result<void>{}; });
  ASSERT_FALSE(listed);
  EXPECT_EQ(listed.error().code(), ErrorCode::kCorrupt);
}

TEST(S3Xml, WhatCannotBe) {
  const auto list = [](const std::string& text) {
    return read_list(**parse_xml(text));
  };
  EXPECT_FALSE(list("<Other/>"));
  EXPECT_FALSE(list(
      "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"));
  EXPECT_FALSE(list(
      "<ListBucketResult><Contents><Key>k</Key><Size>-1</Size></Contents>"
      "</ListBucketResult>"));
  EXPECT_FALSE(list(
      "<ListBucketResult><Contents><Size>1</Size></Contents>"
      "</ListBucketResult>"));
  EXPECT_FALSE(read_parts(**parse_xml(
      "<ListPartsResult><UploadId>u</UploadId><Part><PartNumber>0</PartNumber>"
      "<Size>1</Size></Part></ListPartsResult>")));
  const auto uploads = [](const std::string& inside) {
    return read_uploads(**parse_xml(
        "<ListMultipartUploadsResult>" + inside +
        "</ListMultipartUploadsResult>"));
  };
  EXPECT_TRUE(uploads(""));
  EXPECT_FALSE(read_uploads(**parse_xml("<Other/>")));
  EXPECT_FALSE(uploads("<Upload><Key>k</Key></Upload>"));
  EXPECT_FALSE(uploads("<Upload><UploadId>u</UploadId></Upload>"));
  EXPECT_FALSE(uploads("<IsTruncated>true</IsTruncated>"));
  EXPECT_EQ(url_decode("a%2Bb+c%zz%4"), "a+b c%zz%4");
}

}  // namespace
}  // namespace lockstep::fetch
