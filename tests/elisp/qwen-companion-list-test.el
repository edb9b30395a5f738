;;; qwen-companion-list-test.el --- Tests of what all lists share  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Rows, marks and keys of lists made by `qwen-companion-list-define', without
;; any CLI.

;;; Code:

(require 'qwen-companion-test-helper)
(require 'qwen-companion-list)
(require 'qwen-companion-changes)
(require 'qwen-companion-inspector)
(require 'qwen-companion-session-list)
(require 'qwen-companion-worktrees)

(defvar qwen-companion-list-test--things nil
  "The things in the list: (ID . TEXT).")

(defvar qwen-companion-list-test--loads nil
  "The arguments of the calls to load, newest first.")

(qwen-companion-list-define qwen-companion-list-test-mode "Things"
  "Major mode of a list of things."
  (:buffer "*qwen-companion list test*"
   :thing "thing"
   :columns [("Name" 10 t) ("Second" 10 t) ("Last" 0 t)]
   :first-line 2
   :cut 0
   :rows (lambda () qwen-companion-list-test--things)
   :entry (pcase-lambda (`(,id . ,text)) (list id (vector text "second" "last")))
   :find (lambda (id) (assoc id qwen-companion-list-test--things))
   :empty "No thing"
   :load (lambda (by-user) (push by-user qwen-companion-list-test--loads)))
  (visit ignore "Visit" "visit" :if (qwen-companion-list-row)))

(defmacro qwen-companion-list-test-with (things &rest body)
  "Run BODY in the list of THINGS."
  (declare (indent 1) (debug t))
  `(let ((qwen-companion-list-test--things ,things)
         (qwen-companion-list-test--loads nil))
     (save-window-excursion
       (set-frame-size (selected-frame) 80 24)
       (unwind-protect
           (progn (qwen-companion-list-open 'qwen-companion-list-test-mode)
                  ,@body)
         (qwen-companion-list-close 'qwen-companion-list-test-mode)))))

(ert-deftest qwen-companion-list-test-empty ()
  "A text is in place of rows; point goes to the first row that comes."
  (qwen-companion-list-test-with nil
    (should (string-match-p "^ No thing$" (buffer-string)))
    (should (qwen-companion-test-header-p "0 things"))
    (qwen-companion-test-refused "No thing on this line" (qwen-companion-list-at-point))
    (setq qwen-companion-list-test--things '((1 . "one") (2 . "two")))
    (revert-buffer)
    (should (equal '(t nil t) qwen-companion-list-test--loads))
    (should (equal "one" (cdr (qwen-companion-list-at-point))))
    (should (qwen-companion-test-header-p "2 things  RET visit  g refresh  \\? keys"))))

(ert-deftest qwen-companion-list-test-point-and-marks-stay ()
  "Rows above come and go, and names are cut at their beginning."
  (qwen-companion-list-test-with '((1 . "one") (2 . "the name of a thing"))
    (set-frame-size (selected-frame) 30 24)
    (qwen-companion-list-print)
    (forward-line 2)
    (qwen-companion-list-mark t)
    (push '(0 . "zero") qwen-companion-list-test--things)
    (qwen-companion-list-print)
    (should (looking-at-p "\\*…f a thing +second"))
    (should (equal '((2 . "the name of a thing")) (qwen-companion-list-marked-things)))
    (qwen-companion-list-mark nil)
    (should-not (qwen-companion-list-marked-things))
    (should (looking-at-p " …f a thing"))))

(ert-deftest qwen-companion-list-test-fits ()
  "Columns without room are in a second line, and too many rows are counted."
  (qwen-companion-list-test-with (mapcar (lambda (number) (cons number "x"))
                                         (number-sequence 1 302))
    (should (string-suffix-p "\n 2 more\n" (buffer-string)))
    (should (looking-at-p " x +second +last$"))
    (set-frame-size (selected-frame) 30 24)
    (qwen-companion-list-print)
    (should (looking-at-p " x +second *\n    last$"))))

(ert-deftest qwen-companion-list-test-one-meaning-of-a-key ()
  "No list has a command of its own on the key of a verb that all lists share."
  (let ((keys (mapcar #'cadr qwen-companion-header--verbs))
        (modes 0))
    (should (equal keys (delete-dups (copy-sequence keys))))
    (dolist (file '("review/qwen-companion-review-list" "menu/qwen-companion-session-list"
                    "menu/qwen-companion-worktrees" "chat/qwen-companion-chat-sessions"
                    "changes/qwen-companion-changes" "menu/qwen-companion-inspector"))
      (with-temp-buffer
        (insert-file-contents (expand-file-name (format "lisp/%s.el" file)
                                                (file-name-directory (locate-library "qwen-companion"))))
        (re-search-forward "^(qwen-companion-\\(header-define-keys\\|list-define\\) ")
        (goto-char (match-beginning 0))
        (cl-incf modes)
        (dolist (row (read (current-buffer)))
          (when (consp row)
            (should-not (cl-intersection keys (ensure-list (car row)) :test #'equal))))))
    (should (= 6 modes))))

(defun qwen-companion-list-test--documented (title)
  "Return the keys in the first column of the manual's table with TITLE."
  (with-temp-buffer
    (insert-file-contents (expand-file-name "docs/qwen-companion.org"
                                            (file-name-directory
                                             (locate-library "qwen-companion"))))
    (re-search-forward (format "^| key +| %s +|\n|-.*\n" (regexp-quote title)))
    (let (keys)
      (while (looking-at "| \\([^|]+\\)|.*\n")
        (goto-char (match-end 0))
        (dolist (key (split-string (match-string 1) "\\(?:,\\| or\\)? +" t))
          ;; In Org, = around a key, or ~ around =.
          (push key keys)))
      (cl-loop for (key . rest) on (nreverse keys)
               ;; A key of several characters has spaces inside.
               with text = nil
               do (setq text (concat text (and text " ") key))
               when (string-match "\\`\\([=~]\\)\\(.+\\)\\1\\'" text)
               collect (match-string 2 text) and do (setq text nil)))))

(ert-deftest qwen-companion-list-test-keys-in-the-manual ()
  "The manual has each key of a list, and only keys that are bound."
  (pcase-dolist (`(,title . ,mode)
                 '(("in the list of CLIs" . qwen-companion-sessions-mode)
                   ("in the list of worktrees" . qwen-companion-worktrees-mode)
                   ("in the buffer of changes" . qwen-companion-changes-mode)
                   ("in the list of what CLIs were told" . qwen-companion-inspector-mode)))
    (let ((map (symbol-value (intern (format "%s-map" mode))))
          (documented (qwen-companion-list-test--documented title)))
      (dolist (key documented)
        (should (commandp (lookup-key map (kbd (string-remove-prefix "C-u " key))))))
      (dolist (command (qwen-companion-header--commands map))
        (unless (memq command '(qwen-companion-header-click qwen-companion-header-help
                                revert-buffer qwen-companion-changes-visit-clicked))
          (ert-info ((format "%s in %s" command title))
            (should (cl-intersection (mapcar #'key-description (where-is-internal command map))
                                     documented :test #'equal))))))))

(provide 'qwen-companion-list-test)
;;; qwen-companion-list-test.el ends here
