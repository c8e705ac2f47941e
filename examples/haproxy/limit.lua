-- Ask the gateway whether a request may pass; without an answer in time it may.
-- haproxy.cfg reads the variables: status, and headers of the limit.
core.register_action("limit", { "http-req" }, function(txn)
  local answer = core.httpclient():get{
    url = "http://127.0.0.1:8071/v1/auth",
    -- Only what we set: nothing that the client says of itself reaches the gateway.
    headers = {
      ["x-forwarded-for"] = { txn.sf:src() },
      ["x-forwarded-uri"] = { txn.sf:path() or "/" },
      ["x-forwarded-method"] = { txn.sf:method() },
    },
    -- Longer than `timeout server` of the gateways, because the client repeats a request after this time.
    timeout = 1000,
  }
  if not answer or answer.status == 0 then return end
  local names = { retry = "retry-after", state = "ratelimit", remaining = "x-ratelimit-remaining" }
  for name, header in pairs(names) do
    local lines = answer.headers and answer.headers[header]
    if lines then txn:set_var("txn." .. name, lines[0]) end
  end
  txn:set_var("txn.status", tostring(answer.status))
end)
