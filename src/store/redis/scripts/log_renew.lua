-- An entry for each lease that was renewed: `stream` and `worker` are set before this.
do
  local id = key:match('{(.*)}$'):gsub('%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  for lease = 1, count do
    if not scores or scores[lease] then
      local finish = time + (ttl > 0 and ttl or unpack('>d', ARGV[2], lengths + 8 * (lease - 1)))
      pcall('XADD', stream .. ':leases', '*', 'kind', 'renew', 'time', format('%.0f', time), 'id', id, 'worker', worker,
        'token', tokens[lease], 'end', format('%.0f', finish))
    end
  end
end
