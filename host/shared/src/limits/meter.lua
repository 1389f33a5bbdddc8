-- The meters of one subject, as meter.rs and lows.rs of tidegate-limits have them, in the server's own time: levels in
-- parts of a minute's amount, and how low that of tokens was since earlier charges. A charge is named by its time.
local UNIT, MAX_LOWS = 60000000, 32
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- {time, level of requests, level of tokens, last change, {change, level, change, level ...}, charges that may be corrected,
-- when it began, rate of requests, rate of tokens, when those changed}
local function load(key, requests, tokens)
  local packed = redis.call('GET', key)
  if not packed then return { now, 0, 0, 0, {}, 0, now, requests, tokens, 0 } end
  local meter = cmsgpack.unpack(packed)
  -- What was not limited so far begins now; a gateway of before has written no rates.
  if (meter[8] or 0) == 0 then meter[8] = requests end
  if (meter[9] or 0) == 0 then meter[9] = tokens end
  meter[10] = meter[10] or 0
  local passed = math.max(0, now - meter[1])
  meter[1] = meter[1] + passed
  meter[2] = math.max(0, meter[2] - passed * meter[8])
  meter[3] = math.max(0, meter[3] - passed * meter[9])
  return meter
end

-- The level at another rate: no more than a minute's amount of a lower one, but for a debt, which takes as long to pay as it did.
local function at_rate(level, before, rate)
  if rate >= before then return level end
  return math.min(level, math.max(rate * UNIT, level / before * rate))
end

-- From now on at other rates, as set_rate of meter.rs has it; whether it changed. Once in a minute: of gateways with configs that
-- differ, as while a new one is rolled out, each would take away what was charged at the other's rate.
local function adopt(meter, requests, tokens)
  if requests == 0 then requests = meter[8] end
  if tokens == 0 then tokens = meter[9] end
  if requests == meter[8] and tokens == meter[9] or now - meter[10] < UNIT then return false end
  meter[2] = at_rate(meter[2], meter[8], requests)
  meter[3] = at_rate(meter[3], meter[9], tokens)
  for i = 2, #meter[5], 2 do meter[5][i] = math.min(meter[5][i], meter[3]) end
  meter[8], meter[9], meter[10] = requests, tokens, now
  return true
end

-- One that is empty is as one that never was; the others go when they will be.
local function save(key, meter)
  local left = 0
  if meter[8] > 0 then left = meter[2] / meter[8] end
  if meter[9] > 0 then left = math.max(left, meter[3] / meter[9]) end
  if left == 0 then
    redis.call('DEL', key)
  else
    redis.call('SET', key, cmsgpack.pack(meter), 'PX', math.ceil(left / 1000) + 1000)
  end
end

-- Notes the level of tokens just before a change.
local function change(meter)
  local at = math.max(now, meter[4] + 1)
  local lows, level = meter[5], meter[3]
  meter[4] = at
  while #lows > 0 and lows[#lows] >= level do
    lows[#lows] = nil
    lows[#lows] = nil
  end
  lows[#lows + 1] = at
  lows[#lows + 1] = level
  if #lows > 2 * MAX_LOWS then
    local lowest = table.remove(lows, 2)
    table.remove(lows, 1)
    lows[2] = lowest
  end
  return at
end

-- Gives back as much as was not lost to idleness since that change.
local function give_back(meter, since, amount)
  local lows, first = meter[5], 1
  while lows[first] and lows[first] <= since do first = first + 2 end
  if not lows[first] then return end
  local by = math.min(amount, lows[first + 1])
  for i = first + 1, #lows, 2 do lows[i] = lows[i] - by end
  while first > 1 and lows[first - 1] >= lows[first + 1] do
    table.remove(lows, first - 2)
    table.remove(lows, first - 2)
    first = first - 2
  end
  meter[3] = meter[3] - by
end
