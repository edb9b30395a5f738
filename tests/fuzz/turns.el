;;; turns.el --- Emacs for the oracle of random turns  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; emacs -Q --batch -l scripts/checkout.el -L tests/elisp -l tests/fuzz/turns.el \
;;   -f turns-serve SOCKET
;;
;; Does what tests/fuzz/random_turns.py asks for over SOCKET: it visits and
;; edits files, presses the keys of the buffer of changes, and tells what
;; became of that.  The mode, its backend and its journal are real.

;;; Code:

(require 'qwen-companion-changes-test-helper)

(defvar turns--forms nil "Forms that are to be evaluated, oldest first, as text.")

(defvar turns--seen nil "The ids of the turns that have been told.")

(defun turns-serve ()
  "Evaluate the forms that come over the socket named on the command line."
  (setq create-lockfiles nil
        make-backup-files nil
        require-final-newline nil
        dired-auto-revert-buffer nil
        gc-cons-threshold (* 32 1024 1024))
  (let ((driver (make-network-process
                 :name "driver" :family 'local :service (pop command-line-args-left)
                 :coding 'utf-8-unix :filter #'turns--take
                 :sentinel (lambda (&rest _) (kill-emacs)))))
    (while t
      (unless turns--forms
        (accept-process-output driver 0.02)
        ;; File notifications are input events.
        (read-event nil nil 0.001))
      (when-let* ((form (pop turns--forms)))
        (let ((print-escape-newlines nil))
          (process-send-string
           driver
           (concat (prin1-to-string
                    (condition-case err
                        (list 'ok (turns--plain (eval (car (read-from-string form)) t)))
                      (error (list 'error (format "%S" err)))))
                   "\0")))))))

(defun turns--plain (value)
  "Return VALUE, a string without its properties, which the driver cannot read."
  (if (stringp value) (substring-no-properties value) value))

(defun turns--take (driver text)
  "Keep the forms in TEXT from DRIVER."
  (let ((parts (split-string (concat (process-get driver 'rest) text) "\0")))
    (process-put driver 'rest (car (last parts)))
    (setq turns--forms (append turns--forms (butlast parts)))))

(defun turns-start ()
  "Turn the mode on; return the settings layer, the port and the token."
  (qwen-companion-mode 1)
  (qwen-companion-test-wait-for (eq 'ready (qwen-companion-state)))
  (qwen-companion-journal-watch 'turns t)
  ;; In the place of the daemon that rewinds conversations.
  (add-hook 'qwen-companion-rewind-conversation-functions
            (lambda (target)
              (cons "the conversation too" (lambda () (qwen-companion-rewind-note target nil)))))
  t)

(defun turns-open (root)
  "Make the directory ROOT a root; return what a CLI needs to connect."
  (dired-noselect root)
  (qwen-companion-roots-update)
  (qwen-companion-test-wait-for
   (qwen-companion-roots-published-p (directory-file-name root)))
  (list (cadr (assoc "QWEN_CODE_SYSTEM_DEFAULTS_PATH"
                     (qwen-companion-published-environment qwen-companion-roots--answer)))
        (qwen-companion-published-port qwen-companion-roots--answer)
        (qwen-companion-published-token qwen-companion-roots--answer)))

(defun turns-close ()
  "Kill all buffers of files and directories, and the buffer of changes."
  (qwen-companion-changes-close)
  (qwen-companion-journal-watch 'turns t)
  (dolist (buffer (buffer-list))
    (when (buffer-live-p buffer)
      (with-current-buffer buffer
        (when (or buffer-file-name (derived-mode-p 'dired-mode))
          (set-buffer-modified-p nil)
          (kill-buffer)))))
  t)

(defun turns-next (root)
  "Wait for the end of an agent's turn in ROOT that was not told; return it.
As (ID NOTES FILES); each of FILES is (PATH KIND FROM)."
  (let ((turn (qwen-companion-test-wait-for
               (cl-find-if (lambda (turn)
                             (and (string-prefix-p root (qwen-companion-turn-root turn))
                                  (eq 'agent (qwen-companion-turn-who turn))
                                  (not (eq 'rewind (qwen-companion-turn-source turn)))
                                  (qwen-companion-turn-end turn)
                                  (not (member (qwen-companion-turn-id turn) turns--seen))))
                           (qwen-companion-journal-turns)))))
    (push (qwen-companion-turn-id turn) turns--seen)
    (list (qwen-companion-turn-id turn)
          (append (qwen-companion-turn-notes turn) nil)
          (mapcar (lambda (file)
                    (list (qwen-companion-changed-file-path file)
                          (symbol-name (qwen-companion-changed-file-kind file))
                          (qwen-companion-changed-file-from file)))
                  (qwen-companion-turn-files turn)))))

;;; The user's edits

(defun turns-follow (&rest left)
  "Wait until each buffer has what was written to its file, but those of LEFT.
Text with conflicts is not kept."
  (dolist (buffer (buffer-list))
    (when (buffer-live-p buffer)
      (with-current-buffer buffer
        (when (and buffer-file-name (file-regular-p buffer-file-name)
                   (not (member buffer-file-name left)))
          (qwen-companion-test-wait-for (qwen-companion-follow-now buffer-file-name))
          (when (qwen-companion-conflicts-p)
            (turns-drop buffer-file-name))))))
  t)

(defun turns-insert (path after text save)
  "Insert TEXT into the file PATH after the line AFTER; SAVE it or not."
  (with-current-buffer (find-file-noselect path)
    (goto-char (point-min))
    (search-forward (concat after "\n"))
    (insert text)
    (when save
      (save-buffer))
    t))

(defun turns-save ()
  "Save all buffers with unsaved text.
Forget that of a file that is a directory now, or whose directory is gone."
  (turns-follow)
  (dolist (buffer (buffer-list))
    (with-current-buffer buffer
      (when (and buffer-file-name (buffer-modified-p))
        (if (and (file-directory-p (file-name-directory buffer-file-name))
                 (not (file-directory-p buffer-file-name)))
            (save-buffer)
          (turns-drop buffer-file-name)))))
  (turns-settle))

(defun turns-unsaved ()
  "Return the buffers with unsaved text, as lists (PATH BYTES CONFLICT)."
  (cl-loop for buffer in (buffer-list)
           when (and (buffer-file-name buffer) (buffer-modified-p buffer))
           collect (with-current-buffer buffer
                     (list buffer-file-name
                           (base64-encode-string
                            (encode-coding-string (buffer-string) buffer-file-coding-system) t)
                           (and (qwen-companion-conflicts-p) t)))))

(defun turns-drop (path)
  "Forget the unsaved text of the file PATH."
  (when-let* ((buffer (find-buffer-visiting path)))
    (with-current-buffer buffer
      (set-buffer-modified-p nil)
      (kill-buffer)))
  t)

(defun turns-settle ()
  "Wait until the journal has taken all that Emacs has reported."
  (qwen-companion-journal-await 'journal-busy (list :paths (list "/nothing") :wait nil)
                                qwen-companion-test-limit)
  t)

;;; The buffer of changes

(defun turns-press (key turn &optional path line)
  "Press KEY on TURN, its file PATH, or the hunk with LINE in it.
LINE is as it is shown, with its sign.  Return what is said."
  (qwen-companion-changes-test-open)
  (setq qwen-companion-changes-items-all t
        qwen-companion-hunks-view-context-lines 0
        qwen-companion-items-toggled
        (append (list (list 'group turn)) (and line (list (list 'file turn path)))))
  (qwen-companion-changes-items-reload t)
  (qwen-companion-changes-test-settle)
  (let ((said nil))
    (goto-char (or (qwen-companion-items-start
                    (if path (list 'file turn path) (list 'group turn)))
                   (error "Not shown: %S" (or path turn))))
    (when line
      (search-forward (concat "\n" line "\n"))
      (forward-line -1))
    (set-window-point nil (point))
    (setq said
          (qwen-companion-test-messages
            (cl-letf (((symbol-function 'y-or-n-p) #'always))
              (condition-case err
                  (qwen-companion-test-press key)
                (user-error (message "%s" (error-message-string err)))))))
    (turns-settle)
    said))

(defun turns-press-and-die (count turn)
  "Undo TURN and kill Emacs before the change COUNT, a string, of a file.
At the end of the undoing, kill it in any case."
  (let ((left (string-to-number count)))
    (dolist (function '(write-region rename-file set-file-modes delete-file make-symbolic-link))
      (advice-add function :before
                  (lambda (&rest _)
                    (when (zerop (cl-decf left))
                      (signal-process (emacs-pid) 'SIGKILL))))))
  (turns-press "k" turn)
  (signal-process (emacs-pid) 'SIGKILL))

(defun turns-open-again (root turn)
  "Open ROOT in the next Emacs, and wait for TURN, which was told before."
  (turns-open root)
  (qwen-companion-test-wait-for (qwen-companion-journal-turn turn))
  (setq turns--seen (mapcar #'qwen-companion-turn-id (qwen-companion-journal-turns)))
  t)

;;; The CLI's own rewind

(defun turns-restored (count)
  "Wait until COUNT turns, a string, or more are undoings or what rewinds took.
Return their number."
  (cl-flet ((number ()
              (cl-count-if (lambda (turn) (memq (qwen-companion-turn-source turn) '(undo rewind)))
                           (qwen-companion-journal-turns))))
    (qwen-companion-test-wait-for (>= (number) (string-to-number count)))
    (turns-settle)
    (number)))

(defvar turns--taken nil "The ids of the turns with what rewinds took that were brought back.")

(defun turns-recover (root)
  "Bring back what the CLI's own last rewind took in ROOT, if anything.
Return what is said."
  (turns-follow)
  (let ((taken (cl-find-if (lambda (turn) (eq 'rewind (qwen-companion-turn-source turn)))
                           (qwen-companion-journal-turns))))
    (if (or (null taken) (member (qwen-companion-turn-id taken) turns--taken))
        "nothing was taken"
      (push (qwen-companion-turn-id taken) turns--taken)
      (prog1 (qwen-companion-test-messages
               (with-temp-buffer
                 (setq default-directory root)
                 (qwen-companion-recover)))
        (turns-settle)))))

(provide 'turns)
;;; turns.el ends here
