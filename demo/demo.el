;;; demo.el --- The windows of the demo  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Loaded by demo/demo.py after scripts/checkout.el: turns the mode on, shows
;; a file, the CLI below it, and the guide beside both where there is room;
;; for demo/screenshots.py also a file with room for a chat.

;;; Code:

(defvar org-hide-emphasis-markers)
(defvar qwen-companion-daemon-enabled)
(declare-function qwen-companion-mode "qwen-companion" (&optional arg))
(declare-function qwen-companion-run "qwen-companion-terminal" (directory))

(defconst demo--guide-width 64
  "Columns of the guide, when there is room beside it.")

(defconst demo--chat-width 100
  "Columns of the chat beside a file.")

(defun demo--guide-buffer (guide)
  "Return a buffer with the text of the file GUIDE.
It visits no file: the guide is none of the files one works on."
  (with-current-buffer (get-buffer-create "*guide*")
    (insert-file-contents guide)
    (set-buffer-modified-p nil)
    (org-mode)
    (view-mode 1)
    (current-buffer)))

(defun demo-start (file guide)
  "Visit FILE with the mode on, start the CLI, and show the text of GUIDE."
  (setq org-hide-emphasis-markers t
        ;; The CLI needs no farewell.
        confirm-kill-processes nil)
  (let ((guide (demo--guide-buffer guide))
        (beside (when (>= (frame-width) (+ 80 demo--guide-width))
                  (split-window-right (- demo--guide-width)))))
    (find-file file)
    (if (not beside)
        (message "The guide is in the buffer *guide*")
      (set-window-buffer beside guide)
      ;; C-x o goes between the file and the terminal.
      (set-window-parameter beside 'no-other-window t))
    (setq display-buffer-alist
          '(("\\`\\*qwen: " display-buffer-below-selected)))
    (qwen-companion-mode 1)
    (qwen-companion-run (file-name-directory file))))

(defun demo-start-chat (file)
  "Visit FILE with the mode on, and leave a window beside it for a chat."
  (setq confirm-kill-processes nil
        qwen-companion-daemon-enabled t)
  (find-file file)
  (select-window (split-window-right (- demo--chat-width)))
  (qwen-companion-mode 1))

(provide 'demo)
;;; demo.el ends here
