;;; qwen-companion-menu-test.el --- Tests of the menu  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The menu has every command of the package, says the state, and changes
;; options.

;;; Code:

(require 'compile)
(require 'info)
(require 'qwen-companion-chat)
(require 'qwen-companion-menu)
(require 'qwen-companion-doctor)
(require 'qwen-companion-chat-test-helper)

(defun qwen-companion-menu-test--commands (&optional shown)
  "Return all commands of the table, lists of key, label, symbol, predicate.
With SHOWN non-nil, leave out those of chats where these are off."
  (remove "--" (mapcan (lambda (group) (copy-sequence (cdr group)))
                       (qwen-companion-menu--groups
                        (apply #'append qwen-companion-menu--columns)
                        (or (not shown) qwen-companion-daemon-enabled)))))

(defun qwen-companion-menu-test--sources ()
  "Return the names of the Lisp files of the package."
  (let ((top (locate-library "qwen-companion.el" t)))
    (cons top (directory-files-recursively
               (expand-file-name "lisp" (file-name-directory top)) "\\.el\\'"))))

(defun qwen-companion-menu-test--autoloaded ()
  "Return the commands that the package autoloads."
  (let (commands)
    (dolist (source (qwen-companion-menu-test--sources) commands)
      (with-temp-buffer
        (insert-file-contents source)
        (while (re-search-forward
                (rx bol ";;;###autoload"
                    (or (seq "\n(" (or "defun" "define-minor-mode") " ") " (autoload '")
                    (group (+ (not (any " \n")))))
                nil t)
          (let ((symbol (intern (match-string 1))))
            (when (and (commandp symbol) (not (get symbol 'transient--prefix)))
              (push symbol commands))))))))

(ert-deftest qwen-companion-menu-test-a-header-with-wide-characters ()
  "A long name is cut by columns: each of these characters has two."
  (save-window-excursion
    (with-temp-buffer
      (switch-to-buffer (current-buffer))
      (let ((line (qwen-companion-header-line (make-string 200 ?字) '((nil . "key")))))
        (should (<= (- (window-width) 3) (string-width line) (window-width)))
        (should (string-suffix-p "key" line)))
      ;; A warning never goes as a whole.
      (let ((line (qwen-companion-header-line "name" `((nil . ,(make-string 200 ?字))))))
        (should (<= (- (window-width) 4) (string-width line) (window-width)))))))

(ert-deftest qwen-companion-menu-test-has-every-command ()
  (let ((autoloaded (qwen-companion-menu-test--autoloaded)))
    (should (memq 'qwen-companion-run autoloaded))
    (should-not (cl-set-difference
                 ;; Those for the lines that an agent has changed have a map of their own.
                 (cl-remove-if (lambda (command)
                                 (where-is-internal
                                  command (list qwen-companion-changes-command-map)))
                               autoloaded)
                 ;; It is named where room is short.
                 (append '(qwen-companion-journal-prune)
                         (mapcar (lambda (command) (nth 2 command))
                                 (qwen-companion-menu-test--commands))))))
  (dolist (command (qwen-companion-menu-test--commands))
    (should (commandp (nth 2 command)))
    (should (cl-typep (eval (nth 3 command) t) '(or null string)))))

(ert-deftest qwen-companion-menu-test-commands-of-other-buffers-refuse ()
  "A command for some buffers, called elsewhere, says so and changes nothing."
  (dolist (source (qwen-companion-menu-test--sources))
    (unless (string-match-p "/extensions/\\|loaddefs" source)
      (require (intern (file-name-base source)))))
  (let ((everywhere '(qwen-companion-log))
        ;; A review, a kept text or a new name of the file may be found from elsewhere, too.
        (offered (rx "qwen-companion-" (or (seq "diff-" (or "bury" "edit" "show-warnings" "toggle-line-ends"))
                                           "review-ask" "kept-discard" "follow-rename"
                                           ;; Keys of texts in any buffer.
                                           "header-help" "header-click" "menu-popup" "chat-follow-link"
                                           (seq (* any) "-menu"))
                     eos))
        (autoloaded (qwen-companion-menu-test--autoloaded))
        (refused 0)
        failed)
    (mapatoms
     (lambda (command)
       (when (and (string-prefix-p "qwen-companion-" (symbol-name command))
                  (commandp command)
                  (not (memq command (append everywhere autoloaded)))
                  (not (get command 'byte-obsolete-info))
                  (not (get command 'transient--suffix))
                  (not (get command 'transient--prefix))
                  (not (string-match-p "--\\|-\\(mode\\|test\\)\\'" (symbol-name command))))
         ;; So `read-extended-command-predicate' leaves it out elsewhere.
         (unless (or (command-modes command) (string-match-p offered (symbol-name command)))
           (push (list command "has no mode") failed))
         (with-temp-buffer
           (insert "text")
           (pcase (condition-case err
                      (cl-letf (((symbol-function 'read-from-minibuffer)
                                 (lambda (&rest _) (signal 'quit nil))))
                        (call-interactively command))
                    ((error quit) err))
             (`(user-error . ,_) (cl-incf refused))
             ;; Emacs itself refuses to call one for the mouse.
             (`(error ,(rx "must be bound to an event")))
             (outcome (push (cons command outcome) failed)))
           (should (equal "text" (buffer-string)))))))
    (should-not failed)
    (should (> refused 100))))

(ert-deftest qwen-companion-menu-test-keys ()
  "Each key is that of one command, in the menu and in the keymap."
  (let ((keys (mapcar #'car (append (qwen-companion-menu-test--commands)
                                    qwen-companion-menu--options))))
    (should (equal keys (delete-dups (copy-sequence keys)))))
  (pcase-dolist (`(,key ,_ ,symbol) (qwen-companion-menu-test--commands))
    (should (eq symbol (lookup-key 'qwen-companion-command-map key)))
    ;; Packages that show the keys of a prefix find a short name.
    (should (stringp (car-safe (cdr (assq (aref (kbd key) 0) (cdr qwen-companion-command-map)))))))
  (should (eq 'qwen-companion (lookup-key 'qwen-companion-command-map "?"))))

(defun qwen-companion-menu-test--state ()
  "Return the text about the state above the commands of the menu."
  (qwen-companion-menu--state))

(ert-deftest qwen-companion-menu-test-says-the-state ()
  (qwen-companion-test-with-state 'off
    (should (string-match-p "\\`The mode is off\n" (qwen-companion-menu-test--state))))
  (qwen-companion-test-with-failure "no Python"
    (should (string-match-p "\\`Not running: no Python\n" (qwen-companion-menu-test--state))))
  (qwen-companion-test-with-state 'ready
    (pcase-dolist (`(,sessions . ,said)
                   '((((:id "a" :client "Qwen Code" :version "1"))
                      . "\\`1 CLI is connected, no open proposals\n")
                     (((:id "b" :client "Qwen Code" :version "1")
                       (:id "a" :client "Qwen Code" :version "1"))
                      . "\\`2 CLIs are connected, ")
                     (((:id "a" :client "Qwen Code" :version "1"
                        :state (:activity working :todos ((:text "read" :status done)
                                                          (:text "test" :status pending)))))
                      . "Qwen Code: working, 1/2 to-dos done")))
      (qwen-companion-test-with-sessions sessions
        (should (string-match-p said (qwen-companion-menu-test--state)))))))

(ert-deftest qwen-companion-menu-test-asking-needs-a-cli-that-can-be-prompted ()
  "One that is connected without a terminal in Emacs takes no prompt."
  (qwen-companion-test-with-state 'ready
    (qwen-companion-test-with-sessions '((:id "a" :client "Qwen Code" :version "1"))
      (let ((ask (assoc "W" (qwen-companion-menu-test--commands))))
        (should-error (call-interactively (nth 2 ask)) :type 'user-error)
        (should (equal "no CLI" (eval (nth 3 ask) t)))))))

(ert-deftest qwen-companion-menu-test-says-what-is-hidden ()
  (let ((qwen-companion-excluded-files '("*.key")))
    (qwen-companion-test-with-files '(("a.txt" "a\n"))
      (should-not (string-match-p "you hide" (qwen-companion-menu-test--state)))
      (with-current-buffer (find-file-noselect "a.txt") (qwen-companion-toggle-exclusion))
      (should (string-match-p "with 1 pattern of yours, plus 1 file"
                              (qwen-companion-menu-test--state))))))

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
                           (substring-no-properties (transient-format-value object))))
            (dotimes (_ (length choices))
              (transient-infix-set object (qwen-companion-menu--next-value option))
              (push (default-value option) seen))
            ;; All of them, and the first again.
            (should (equal before (car seen)))
            (should-not (cl-set-exclusive-or seen (mapcar #'car choices) :test #'equal)))
        (customize-set-variable option before)))))

(defmacro qwen-companion-menu-test--with-session (&rest body)
  "Run BODY with a CLI that is connected, in a terminal, the current buffer."
  `(qwen-companion-test-with-files '(("a.txt" "a\n"))
     (qwen-companion-test-with-backend
       (let ((qwen-companion-backend--state 'ready)
             (terminal (generate-new-buffer "terminal")))
         (qwen-companion-test-set-sessions '((:id "session-1" :client "qwen" :version "1")))
         (cl-letf (((symbol-function 'qwen-companion-terminal-session-buffer)
                    (lambda (_) terminal)))
           (unwind-protect
               (with-current-buffer terminal
                 (setq qwen-companion-terminal-directory
                       (directory-file-name default-directory))
                 (set-process-query-on-exit-flag
                  (make-process :name "cat" :command '("cat") :buffer terminal) nil)
                 ,@body)
             (delete-process (get-buffer-process terminal))))))))

(defconst qwen-companion-menu-test--states
  '((nothing-installed
     . (lambda (body)
         (qwen-companion-test-with-files '(("a.txt" "a\n"))
           (let ((exec-path nil)
                 (vc-handled-backends nil)
                 (qwen-companion-python nil)
                 (qwen-companion-backend-directory (expand-file-name "none/"))
                 (process-environment
                  (cons (concat "XDG_STATE_HOME=" (expand-file-name "state"))
                        process-environment))
                 (qwen-companion-backend--state 'off))
             (with-current-buffer (find-file-noselect "a.txt")
               (funcall body))))))
    (no-cli
     . (lambda (body)
         (qwen-companion-test-with-files '(("a.txt" "a\n"))
           (qwen-companion-test-with-backend
             (qwen-companion-test-with-state 'ready
               (with-current-buffer (find-file-noselect "a.txt")
                 (funcall body)))))))
    (one-cli
     . (lambda (body)
         (qwen-companion-menu-test--with-session (funcall body))))
    (review-open
     . (lambda (body)
         (qwen-companion-menu-test--with-session
          (cl-letf ((qwen-companion-diff-style 'unified)
                    ((symbol-function 'qwen-companion-merge-compare)
                     #'qwen-companion-test-compare-now))
            (qwen-companion-test-propose "a.txt" "b\n")
            (qwen-companion-diff-open)
            (set-buffer (window-buffer))
            (funcall body)))))
    (chat
     . (lambda (body)
         (qwen-companion-chat-test-with
           (goto-char (point-min))
           (funcall body)))))
  "States in which each command of the menu is called, an alist.
A state is a function that calls another one, without arguments, in it.")

(defun qwen-companion-menu-test--visible ()
  "Return the state in which a user may notice a change."
  (list (mapcar (lambda (window)
                  (with-current-buffer (window-buffer window)
                    (list (current-buffer) (buffer-chars-modified-tick) (window-point window)
                          (format-mode-line header-line-format))))
                (window-list))
        (selected-window)
        (car kill-ring)
        (length qwen-companion-test-calls)))

(defun qwen-companion-menu-test--press (command)
  "Call COMMAND of the table if it is not inapt.
Return the reason if it is, t if the user was asked for something or may
notice that something was done, else a list with the error or `nothing'."
  (pcase-let ((`(,_ ,_ ,symbol ,reason) command)
              (asks (lambda (&rest _) (throw 'asked t))))
    (or (eval reason t)
        (catch 'asked
          (condition-case err
              (cl-letf (((symbol-function 'completing-read) asks)
                        ((symbol-function 'read-from-minibuffer) asks)
                        ((symbol-function 'read-string) asks)
                        ((symbol-function 'read-file-name) asks)
                        ((symbol-function 'y-or-n-p) asks)
                        ((symbol-function 'yes-or-no-p) asks)
                        ;; What starts programs.
                        ((symbol-function 'qwen-companion-terminal-open) asks)
                        ((symbol-function 'compilation-start) asks)
                        ((symbol-function 'qwen-companion-doctor--report) asks)
                        ((symbol-function 'qwen-companion-mode)
                         (lambda (&rest _) (interactive) (throw 'asked t)))
                        ((symbol-function 'transient-setup) asks)
                        ;; The keys of a CLI.
                        ((symbol-function 'process-send-string) asks)
                        ((symbol-function 'gui-get-selection) (lambda (&rest _) "image"))
                        (qwen-companion-inspector--buffer nil))
                (let (before after)
                  (save-window-excursion
                    (setq before (qwen-companion-menu-test--visible))
                    (let ((said (qwen-companion-test-messages (call-interactively symbol))))
                      (setq after (list said (qwen-companion-menu-test--visible)))))
                  (or (not (equal after (list "" before))) (list symbol 'nothing))))
            ;; Read by `interactive' itself.
            (end-of-file t)
            (error (list symbol err)))))))

(ert-deftest qwen-companion-menu-test-each-entry-works-or-says-why-not ()
  "In five states, each entry that looks apt works; others give a reason."
  (let ((vc-handled-backends nil)
        failed)
    (pcase-dolist (`(,name . ,state) qwen-companion-menu-test--states)
      (dolist (command (let (shown)
                         (funcall state (lambda ()
                                          (setq shown (qwen-companion-menu-test--commands t))))
                         shown))
        (funcall state
                 (lambda ()
                   (let ((result (qwen-companion-menu-test--press command)))
                     (when (consp result)
                       (push (cons name result) failed)))))))
    (should-not failed)))

(defun qwen-companion-menu-test--size (more)
  "Return (WIDTH . HEIGHT) of the first menu, or with MORE of the second."
  (let ((columns
         (mapcar
          (lambda (column)
            (mapcar (lambda (entry)
                      (if (stringp entry)
                          (length entry)
                        (+ 3 (length (funcall (eval (plist-get (cddr entry) :description) t))))))
                    column))
          (qwen-companion-menu--all-columns more qwen-companion-daemon-enabled))))
    (cons (+ (* 3 (1- (length columns)))
             (apply #'+ (mapcar (lambda (column) (apply #'max column)) columns)))
          (apply #'max (mapcar #'length columns)))))

(ert-deftest qwen-companion-menu-test-fits-into-a-terminal ()
  "At 80x24, where Emacs gives it 18 lines, no row wraps and none is hidden."
  (pcase-dolist (`(,_ . ,state) qwen-companion-menu-test--states)
    (funcall state
             (lambda ()
               (dolist (more '(nil t))
                 (pcase-let ((`(,width . ,height) (qwen-companion-menu-test--size more)))
                   (should (< width 80))
                   (should (<= (+ height
                                  (if more 0 (length (split-string (qwen-companion-menu-test--state) "\n"))))
                               18))))))))

(ert-deftest qwen-companion-menu-test-in-the-menu-bar ()
  "The mode has a menu with items that are enabled where they apply."
  (should (lookup-key qwen-companion-mode-map [menu-bar qwen-companion]))
  (let ((qwen-companion-daemon-enabled t))
    (should (eq #'qwen-companion-chats (lookup-key (qwen-companion-menu-bar) [Chat List]))))
  (let ((menu (qwen-companion-menu-bar)))
    (should (eq #'qwen-companion-diff-accept (lookup-key menu [Reviews Accept])))
    (should-not (lookup-key menu [Chat]))
    (should-not (lookup-key menu [Daemon]))
    (should (lookup-key menu (vector (intern "Turn chats on"))))
    ;; With the reason, where it is not enabled.
    (let ((item (cdr (assq 'Send\ Esc (lookup-key menu [CLI])))))
      (with-temp-buffer
        (should (equal "Send Esc (no program)" (eval (nth 1 item) t)))
        (should-not (eval (plist-get (nthcdr 3 item) :enable) t))))))

(ert-deftest qwen-companion-menu-test-commands-without-a-package ()
  "A clone, loaded by `require' only, has the commands too.
No file of the chat is loaded for its menus."
  (let* ((commands (mapcar (lambda (command) (nth 2 command)) (qwen-companion-menu-test--commands)))
         (form `(progn
                  (require 'qwen-companion-doctor)
                  (qwen-companion-menu-bar)
                  (princ (list (seq-remove #'commandp ',commands)
                               (seq-filter (lambda (feature)
                                             (string-match-p "companion-\\(?:chat\\|daemon\\)"
                                                             (symbol-name feature)))
                                           features))))))
    (should (memq 'qwen-companion-chat commands))
    (with-temp-buffer
      (apply #'call-process
             (expand-file-name invocation-name invocation-directory) nil t nil
             "-Q" "--batch"
             (append
              (mapcan (lambda (directory) (list "-L" directory)) (delq nil load-path))
              (list "-l" "qwen-companion" "--eval" (format "%S" form))))
      (should (string-suffix-p "(nil nil)" (buffer-string))))))

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
    (qwen-companion-test-go-to "(qwen-companion)")
    (should (eq 'help-info (button-type (button-at (1- (point))))))
    (kill-buffer)))

(provide 'qwen-companion-menu-test)
;;; qwen-companion-menu-test.el ends here
