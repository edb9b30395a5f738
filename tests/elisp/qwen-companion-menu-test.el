;;; qwen-companion-menu-test.el --- Tests of the menu  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The menu has every command of the package, says the state, and changes
;; options.

;;; Code:

(require 'ert)
(require 'cl-lib)
(require 'info)
(require 'qwen-companion)
(require 'qwen-companion-chat)
(require 'qwen-companion-menu)
(require 'qwen-companion-test-helper)

(defun qwen-companion-menu-test--commands ()
  "Return all commands of the table, lists of key, label, symbol, predicate."
  (mapcan (lambda (group) (copy-sequence (cdr group)))
          (apply #'append qwen-companion-menu--groups)))

(defun qwen-companion-menu-test--autoloaded ()
  "Return the commands that the package autoloads."
  (let ((sources (directory-files
                  (file-name-directory (locate-library "qwen-companion.el" t))
                  t "\\`qwen-companion[^/]*\\.el\\'"))
        commands)
    (dolist (source sources commands)
      (with-temp-buffer
        (insert-file-contents source)
        (while (re-search-forward
                "^;;;###autoload\n(\\(?:defun\\|define-minor-mode\\) \\([^ \n]+\\)" nil t)
          (let ((symbol (intern (match-string 1))))
            (when (commandp symbol)
              (push symbol commands))))))))

(ert-deftest qwen-companion-menu-test-has-every-command ()
  (let ((autoloaded (qwen-companion-menu-test--autoloaded)))
    (should (memq 'qwen-companion-run autoloaded))
    (should-not (cl-set-difference
                 ;; Those for the lines that an agent has changed have a map of their own.
                 (cl-remove-if (lambda (command)
                                 (string-match-p "-changes-.*-\\(here\\|change\\)\\'"
                                                 (symbol-name command)))
                               autoloaded)
                 ;; In Dired the marked files are sent.
                 (cons 'qwen-companion-chat-send-marked
                       (mapcar (lambda (command) (nth 2 command))
                               (qwen-companion-menu-test--commands))))))
  (dolist (command (qwen-companion-menu-test--commands))
    (should (commandp (nth 2 command)))
    (when (nth 3 command)
      (should (functionp (nth 3 command))))))

(ert-deftest qwen-companion-menu-test-keys ()
  "Each key is that of one command, in the menu and in the keymap."
  (let ((keys (mapcar #'car (append (qwen-companion-menu-test--commands)
                                    qwen-companion-menu--options))))
    (should (equal keys (delete-dups (copy-sequence keys)))))
  (pcase-dolist (`(,key ,_ ,symbol) (qwen-companion-menu-test--commands))
    (should (eq symbol (lookup-key 'qwen-companion-command-map key))))
  (should (eq 'qwen-companion (lookup-key 'qwen-companion-command-map "?"))))

(ert-deftest qwen-companion-menu-test-says-the-state ()
  (let ((qwen-companion-backend--state 'off))
    (should (string-match-p "\\`The mode is off\n" (qwen-companion-menu--state))))
  (let ((qwen-companion-backend--state 'error)
        (qwen-companion-backend--failure "no Python"))
    (should (string-match-p "\\`Not running: no Python\n" (qwen-companion-menu--state))))
  (let ((qwen-companion-backend--state 'ready)
        (sessions '((:id "a" :client "Qwen Code" :version "1"))))
    (cl-letf (((symbol-function 'qwen-companion-backend-sessions)
               (lambda () sessions)))
      (should (string-match-p "\\`1 CLI is connected, no proposal waits\n"
                              (qwen-companion-menu--state)))
      (push '(:id "b" :client "Qwen Code" :version "1") sessions)
      (should (string-match-p "\\`2 CLIs are connected, "
                              (qwen-companion-menu--state))))))

(ert-deftest qwen-companion-menu-test-says-what-is-hidden ()
  (let ((qwen-companion-excluded-files '("*.key")))
    (qwen-companion-test-with-files '(("a.txt" "a\n"))
      (should-not (string-match-p "you hide" (qwen-companion-menu--state)))
      (with-current-buffer (find-file-noselect "a.txt")
        (qwen-companion-toggle-exclusion)
        (should (qwen-companion-menu--file-p)))
      (should (string-match-p "with 1 pattern of yours, and 1 file you hide"
                              (qwen-companion-menu--state))))))

(ert-deftest qwen-companion-menu-test-options-take-each-value ()
  (pcase-dolist (`(,_ ,_ ,option) qwen-companion-menu--options)
    (let* ((choices (qwen-companion-menu--choices option))
           (before (default-value option))
           (object (qwen-companion-menu--choice :variable option))
           seen)
      (should (> (length choices) 1))
      (unwind-protect
          (progn
            (transient-init-value object)
            (should (equal (cdr (assoc before choices))
                           (substring-no-properties
                            (transient-format-value object))))
            (dotimes (_ (length choices))
              (transient-infix-set object (qwen-companion-menu--next-value option))
              (push (default-value option) seen))
            ;; All of them, and the first again.
            (should (equal before (car seen)))
            (should-not (cl-set-exclusive-or seen (mapcar #'car choices)
                                             :test #'equal)))
        (customize-set-variable option before)))))

(ert-deftest qwen-companion-menu-test-in-the-menu-bar ()
  "The mode has a menu with items that are enabled where they apply."
  (should (lookup-key qwen-companion-mode-map [menu-bar qwen-companion]))
  (let ((menu (qwen-companion-menu-bar)))
    (should (eq #'qwen-companion-diff-accept (lookup-key menu [Reviews Accept])))
    (should (eq #'qwen-companion-chats (lookup-key menu [Chat List])))))

(ert-deftest qwen-companion-menu-test-commands-without-a-package ()
  "A clone, loaded by `require' only, has the commands too.
A chat has to be required."
  (let ((commands (cl-remove-if
                   (lambda (command)
                     (string-match-p "-\\(chats?\\|daemon\\)\\(-\\|\\'\\)" (symbol-name command)))
                   (mapcar (lambda (command) (nth 2 command))
                           (qwen-companion-menu-test--commands)))))
    (should (memq 'qwen-companion-ask commands))
    (with-temp-buffer
      (apply #'call-process
             (expand-file-name invocation-name invocation-directory) nil t nil
             "-Q" "--batch"
             (append
              (mapcan (lambda (directory) (list "-L" directory)) (delq nil load-path))
              (list "-l" "qwen-companion" "--eval"
                    (format "(princ (format \"missing: %%S\" (delq nil (mapcar (lambda (command) (unless (commandp command) command)) '%S))))"
                            commands))))
      (should (string-match-p "missing: nil" (buffer-string))))))

(ert-deftest qwen-companion-menu-test-leads-to-the-manual ()
  (let (shown)
    (cl-letf (((symbol-function 'info)
               (lambda (node &rest _) (interactive) (setq shown node)))
              ((symbol-function 'Info-find-file) #'always))
      (call-interactively (lookup-key (qwen-companion-menu-bar) [Manual])))
    (should (equal "(qwen-companion)" shown)))
  ;; A clone has no Info, nor has what package-vc installs where there is no makeinfo.
  (cl-letf (((symbol-function 'Info-find-file) #'ignore))
    (save-window-excursion
      (call-interactively (lookup-key (qwen-companion-menu-bar) [Manual]))
      (should (string-suffix-p "/docs/qwen-companion.org" buffer-file-name))
      (should buffer-read-only)
      (kill-buffer)))
  (with-temp-buffer
    (qwen-companion-sessions-mode)
    (qwen-companion-header-help))
  (with-current-buffer "*Help*"
    (goto-char (point-min))
    (search-forward "(qwen-companion)")
    (should (eq 'help-info (button-type (button-at (1- (point))))))
    (kill-buffer)))

(provide 'qwen-companion-menu-test)
;;; qwen-companion-menu-test.el ends here
