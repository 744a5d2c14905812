-- An entry for each lease released, whether or not it was held: `stream` and `worker` are set before this.
do
  local id = key:match('{(.*)}$'):gsub('%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  local at = format('%.0f', time)
  for argument = 5, #ARGV do
    pcall('XADD', stream .. ':leases', '*', 'kind', 'release', 'time', at, 'id', id, 'worker', worker, 'token',
      ARGV[argument], 'end', at)
  end
end
