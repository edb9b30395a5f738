;;; qwen-companion-welcome-test.el --- Tests of the page at the first start  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion)
(require 'qwen-companion-test-helper)

(defmacro qwen-companion-welcome-test--with-home (&rest body)
  "Run BODY where the companion has not been used."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-files nil
     (let ((process-environment
            (cons (concat "XDG_STATE_HOME=" (expand-file-name "state")) process-environment))
           ;; Not as with -Q, where nothing is saved.
           (user-init-file (expand-file-name "init.el"))
           (custom-file (expand-file-name "custom.el")))
       (unwind-protect
           (save-window-excursion ,@body)
         (when (get-buffer "*qwen-companion welcome*")
           (kill-buffer "*qwen-companion welcome*"))))))

(defun qwen-companion-welcome-test--start ()
  "Start the companion with a frame of the user's; return the page's window."
  (qwen-companion-welcome-note-start)
  (cl-letf (((symbol-function 'qwen-companion-context-frame-p) #'always))
    (qwen-companion-welcome-if-due))
  (get-buffer-window "*qwen-companion welcome*"))

(ert-deftest qwen-companion-welcome-test-the-first-start-only ()
  (qwen-companion-welcome-test--with-home
    (let* ((selected (selected-window))
           (window (qwen-companion-welcome-test--start)))
      (should window)
      (should (eq selected (selected-window)))
      (should (= #o700 (file-modes "state/qwen-companion")))
      (delete-window window)
      (should-not (qwen-companion-welcome-test--start))
      (qwen-companion-welcome)
      (should (derived-mode-p 'qwen-companion-welcome-mode)))))

(ert-deftest qwen-companion-welcome-test-waits-for-a-frame-of-the-user ()
  (qwen-companion-welcome-test--with-home
    (qwen-companion-welcome-note-start)
    ;; As in a daemon.
    (qwen-companion-welcome-if-due)
    (should-not (get-buffer-window "*qwen-companion welcome*"))
    (should-not (file-exists-p "state"))
    (should (qwen-companion-welcome-test--start))))

(ert-deftest qwen-companion-welcome-test-nothing-for-who-has-used-it ()
  (qwen-companion-welcome-test--with-home
    (make-directory "state/qwen-companion" t)
    (should-not (qwen-companion-welcome-test--start))))

(ert-deftest qwen-companion-welcome-test-its-text-fits ()
  (qwen-companion-welcome-test--with-home
    (qwen-companion-welcome)
    (should (<= (line-number-at-pos (point-max)) 12))
    (goto-char (point-min))
    (while (not (eobp))
      (should (< (- (line-end-position) (point)) 80))
      (forward-line))))

(ert-deftest qwen-companion-welcome-test-each-key-turns-one-off-and-saves-it ()
  (qwen-companion-welcome-test--with-home
    (qwen-companion-welcome)
    (pcase-dolist (`(,key ,option . ,_) qwen-companion-welcome--items)
      (cl-progv (list option) (list (symbol-value option))
        (let ((before (symbol-value option)))
          (should before)
          (execute-kbd-macro key)
          (should-not (symbol-value option))
          (should (string-match-p (format "^ %s off " key) (buffer-string)))
          (should (string-match-p (format "'(%s nil)" option)
                                  (with-temp-buffer
                                    (insert-file-contents custom-file)
                                    (buffer-string))))
          (goto-char (point-min))
          (re-search-forward (format "^ %s off " key))
          (goto-char (1+ (match-beginning 0)))
          (execute-kbd-macro (kbd "RET"))
          (should (equal before (symbol-value option))))
        (put option 'saved-value nil)
        (put option 'customized-value nil)))))

(provide 'qwen-companion-welcome-test)
;;; qwen-companion-welcome-test.el ends here
