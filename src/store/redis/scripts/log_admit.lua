-- An entry for each job admitted, and for each lease released on the way: `stream` and `worker` are set before this.
do
  local id = key:match('{(.*)}$'):gsub('%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  local at = format('%.0f', time)
  for lease = 1, releases do
    pcall('XADD', stream .. ':leases', '*', 'kind', 'release', 'time', at, 'id', id, 'worker', worker, 'token',
      ARGV[told + 1 + lease], 'end', at)
  end
  for job = 1, granted do
    local cost = equal > 0 and equal or unpack('>d', ask, numbers + 48 * rules + 8 * (job - 1))
    local slot = limit >= 0
    pcall('XADD', stream, '*', 'time', at, 'id', id, 'cost', format('%.0f', cost), 'worker', worker, 'token',
      slot and ARGV[taken + job] or '', 'fence', format('%.0f', slot and first + job - 1 or 0), 'end',
      format('%.0f', slot and time + ttl or 0))
  end
end
