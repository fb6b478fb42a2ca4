(() => {
  const lighter = JSON.parse(document.getElementById('lighter').textContent);
  const root = document.documentElement;
  const button = document.getElementById('theme');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const touch = matchMedia('(hover: none)').matches;
  const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches;
  const template = () => {
    const style = getComputedStyle(root);
    const [ink, grid, page] = ['ink', 'grid', 'page'].map(
      name => style.getPropertyValue('--' + name).trim());
    const axis = {gridcolor: grid, linecolor: grid, zeroline: false, automargin: true,
                  title: {standoff: 8}};
    const clear = 'rgba(0,0,0,0)';
    return {layout: {
      paper_bgcolor: clear, plot_bgcolor: clear, margin: {l: 12, r: 16, t: 12, b: 46},
      font: {color: ink, size: 13, family: 'system-ui, sans-serif'},
      legend: {orientation: 'h', x: 0, y: -0.22, yanchor: 'top', font: {size: 12}},
      hoverlabel: {bgcolor: page, font: {size: 12, color: ink}}, xaxis: axis, yaxis: axis,
      dragmode: touch ? false : 'zoom',
      shapedefaults: {line: {color: ink, dash: 'dot', width: 1.4}, label: {font: {size: 12}}},
      annotationdefaults: {showarrow: false, font: {size: 12}, bgcolor: page, borderpad: 1}}};
  };
  const themed = value => {
    if (typeof value === 'string') return lighter[value] ?? value;
    if (Array.isArray(value)) return value.map(themed);
    if (value === null || typeof value !== 'object') return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v)]));
  };
  const config = {responsive: true, displaylogo: false, displayModeBar: touch ? false : 'hover',
                  modeBarButtonsToRemove: ['lasso2d', 'select2d']};
  const plots = [...document.querySelectorAll('.plot')];
  const specs = plots.map(p => JSON.parse(document.getElementById(p.id + '-data').textContent));
  const drawAll = async () => {
    button.textContent = isDark() ? 'Light' : 'Dark';
    for (let number = 0; number < plots.length; number++) {
      const {data, layout} = isDark() ? themed(specs[number]) : specs[number];
      await Plotly.react(plots[number], data, {...layout, template: template()}, config);
      await new Promise(next => setTimeout(next));
    }
    root.dataset.drawn = plots.length;
  };
  button.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    drawAll();
  });
  dark.addEventListener('change', drawAll);
  drawAll();
})();
