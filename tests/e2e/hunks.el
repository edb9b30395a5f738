;;; hunks.el --- Press keys on hunks in the buffer of changes  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Loaded into the Emacs of end-to-end tests that undo many hunks: to type
;; for each of them into a terminal would take minutes.

;;; Code:

(defconst hunks--buffer "*qwen-companion changes*")

(defun hunks--goto-heading (regexp)
  "Go to the heading that REGEXP finds below point, and unfold it."
  (re-search-forward regexp)
  (forward-line 0)
  (when (looking-at " *[▸>] ")
    (execute-kbd-macro (kbd "TAB"))))

(defun hunks--goto-file (prompt name)
  "Go to the heading of the file NAME in the turn of PROMPT, which is unfolded."
  (goto-char (point-min))
  ;; The tokens that it has used may come after it.
  (hunks--goto-heading (concat "^[▸▾>v] .*  " (regexp-quote prompt) "\\(?:  .*\\)?$"))
  (hunks--goto-heading (concat "^  [▸▾>v] " (regexp-quote name) "  ")))

(defmacro hunks--in-window (&rest body)
  "Run BODY in the window of the buffer of changes."
  `(with-selected-window (get-buffer-window hunks--buffer)
     ,@body))

(defun hunks-count (prompt name limit)
  "Return how many hunks the file NAME has in the turn of PROMPT.
Wait for them LIMIT seconds at most."
  (with-timeout (limit (error "%s is still compared" name))
    (let (count)
      (while (not count)
        (hunks--in-window
         ;; Of many files, some come in a moment.
         (ignore-error search-failed
           (hunks--goto-file prompt name)
           (forward-line 1)
           (unless (looking-at-p " *Comparing")
             (let ((end (save-excursion
                          (if (re-search-forward "^ \\{0,2\\}[▸▾>v] " nil t)
                              (match-beginning 0)
                            (point-max)))))
               (setq count (how-many "^@@" (point) end))))))
        (unless count
          (accept-process-output nil 0.05)))
      count)))

(defun hunks-press (prompt name number keys limit)
  "Press KEYS on hunk NUMBER of the file NAME in the turn of PROMPT.
With NUMBER 0, press them on the heading of the file.  As a user would,
press them again where the buffer shows what was there a moment ago,
until LIMIT seconds are over."
  (with-timeout (limit (error "%s is never as it is shown" name))
    (let (done)
      (while (not done)
        (hunks--in-window
         (condition-case err
             (progn
               (hunks--goto-file prompt name)
               (re-search-forward "^@@" nil nil number)
               (forward-line 0)
               (execute-kbd-macro (kbd keys))
               (setq done t))
           (search-failed nil)
           (user-error
            (unless (string-match-p "just changed\\|try again\\|undone"
                                    (error-message-string err))
              (signal (car err) (cdr err))))))
        (unless done
          (accept-process-output nil 0.05))))))

(provide 'hunks)
;;; hunks.el ends here
