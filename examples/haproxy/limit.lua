-- Ask the gateway whether a request may pass. Without an answer in time, the request passes.
-- haproxy.cfg reads the variables: the status, and these headers with `_` instead of `-`.
local HEADERS = {
  "retry-after", "ratelimit", "ratelimit-policy",
  "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
}

core.register_action("limit", { "http-req" }, function(txn)
  local answer = core.httpclient():get{
    url = "http://127.0.0.1:8071/v1/auth",
    -- No header of the client reaches the gateway.
    headers = {
      ["x-forwarded-for"] = { txn.sf:src() },
      ["x-forwarded-uri"] = { txn.sf:path() or "/" },
      ["x-forwarded-method"] = { txn.sf:method() },
    },
    -- Longer than `timeout server` of the gateways, because the client repeats a request after this time.
    timeout = 1000,
  }
  if not answer or answer.status == 0 then return end
  for _, header in ipairs(HEADERS) do
    local lines = answer.headers and answer.headers[header]
    if lines then txn:set_var("txn." .. header:gsub("%-", "_"), lines[0]) end
  end
  txn:set_var("txn.status", tostring(answer.status))
end)
